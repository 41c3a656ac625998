"""Every bound in one place, with its reason.  Never here: anything but constants."""

from __future__ import annotations

from typing import Final

KEY_LIMIT_BYTES: Final = 1_024
"""A key stands in several btree indexes, whose entries Postgres limits to about 2,700 bytes."""

VALUE_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""One record or state cell; a checkpoint of a bundle must stay far below Postgres' 1 GB field limit."""

LEAST_CODED_INT: Final = -(2**63)
"""MessagePack has no smaller int, and so coders take none."""

MOST_CODED_INT: Final = 2**64 - 1
"""Nor a larger one."""

TAG_LIMIT_BYTES: Final = 256
"""Timer tags stand in an index beside the key."""

WORK_LIMIT_RECORDS: Final = 4_096
"""Records per invocation.  At about 2 us a record, this keeps the longest turn of the event loop under 10 ms."""

INVOCATION_TARGET_US: Final = 20_000
"""When an invocation takes longer, the next one gets fewer records, because all other work of the process waits for it."""

FIRST_WORK_RECORDS: Final = 32
"""Records of a computation's first invocation in a run, when nobody knows yet how slow its hooks are.  The next has twice as
many, and so on.  What Ctrl-C breaks off runs again, so it must not be 4,096 slow hooks.  It must not be fewer either: a hook
that fails for every key must be noticed by its first `FIRST_FAILURES` keys before anything is committed."""

WORK_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Bytes per invocation: bounds one checkpoint's size."""

INFLIGHT_LIMIT_CHECKPOINTS: Final = 8
"""Checkpoints of one interval that may wait for their commit.  Beyond that its user code pauses."""

NAGLE_RECORDS: Final = 256
"""On a cluster, fewer records than these wait while a checkpoint of their interval commits, and then run together.  Each
bundle that is run costs the same, however small it is: so at 1,000 records/s a bundle for itself took half of a processor."""

CALL_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""What one call of a hook may produce and write, encoded.  A checkpoint is one row of the log, and Postgres takes no row of
a gigabyte.  More than this is an error of the hook."""

OUTCOME_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""When the hooks of an invocation have produced and written so much, no other one runs in it.  With the last call, a
checkpoint has 96 MiB at most, and eight of them can wait for their commit or be folded together."""

WRITE_OVERHEAD_BYTES: Final = 40
"""Key, time and place of one production or written entry in a checkpoint, roughly."""

WHOLE_BUNDLES_RECORDS: Final = 1_024
"""An invocation that has so many records does not cut the next bundle to fill up.  Otherwise one short invocation would have
every later bundle cut at the same place, and a cut costs a twentieth of what the hooks do with the records."""

GROWTH_SAMPLE: Final = 64
"""One in so many values that hooks set under snapshots is weighed before the epoch is cut, for the estimate of what memory
takes.  To weigh one in 16 of them took a hundredth of all time."""

ADOPTED_AT_ONCE: Final = 256
"""So many values of the last epoch are merged into memory at a time.  Of 1,000,000 keys each takes 1.5 us to find.  To write
it then takes 0.2 us with so few, because it is still in the processor's cache, and 1.5 us with 1,024."""

ADOPTED_AT_CUT: Final = 16_384
"""With so few keys in memory, the cut itself merges what its epoch has set.  That takes at most 8 ms, as these keys are in
the processor's cache.  Invocations that merge their own keys look for each twice."""

ADOPTED_PER_KEY: Final = 2
"""Keys that an invocation merges for each key that it reads.  So an epoch is merged when half as much has run as in it."""

HEAVY_VALUE_BYTES: Final = 16 * 1024
"""A value above this is weighed when it is produced or set.  Lighter productions are weighed about a thousand at a time: to
add up each one's size took a twentieth of a hook's time.  Lighter values of one-value cells are not weighed: the records of
an invocation bound their number."""

GROUP_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Checkpoints of a group commit, unless a single one is larger: they travel to Postgres in one message, which may have no
gigabyte."""

RECORD_OVERHEAD_BYTES: Final = 100
"""Roughly what a record takes in memory besides its value.  It is added wherever bytes are counted."""

INBOX_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""Bytes that may wait at one interval.  Above that, no injector reads for it."""

UNACKED_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""Unacked bytes above which a sender pauses: an injector reads no more, and an interval runs no user code.  Senders keep
unacked bundles in case they must be sent again, so this also bounds what waits at a receiver.  Under snapshots a receiver
parks what comes behind barriers, so all intervals that send to it share this much."""

OUTBOX_LIMIT_BUNDLES: Final = 256
"""Unacked bundles of one interval before its user code pauses (back-pressure)."""

FOLD_TRIGGER_BYTES: Final = 8 * 1024 * 1024
"""Settled log bytes of an interval (all their productions are acked) that start a fold."""

FOLD_TRIGGER_CHECKPOINTS: Final = 256
"""Settled checkpoints that start a fold, so that small bundles do not make a long log."""

FOLD_TRIGGER_KEYS: Final = 32_768
"""Keys in the unfolded log of an interval, and writes of keys in its settled part, that start a fold.  The fold is then as
large as it may be.  To wait longer would leave Postgres idle until user code has to wait for it."""

LOG_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""Log bytes of an interval at which a fold no longer waits for acks.  This bounds what a recovery must fold."""

LOG_LIMIT_CHECKPOINTS: Final = 1_024
"""The same in checkpoints."""

LOG_FULL_FACTOR: Final = 2
"""At so many times these limits, an interval runs no user code until a fold has made room.  Otherwise a pipeline that makes
keys faster than Postgres stores them would take ever more memory, and ever longer to recover."""

FOLD_TRIGGER_IDS: Final = 65_536
"""Ids of outside clients in the unfolded log that start a fold.  Each is a row, and so many take a second to insert.  Earlier
folds would write the keys' state more often than they save."""

UNFOLDED_LIMIT_KEYS: Final = 131_072
"""Keys in the unfolded log of an interval at which no user code runs: two seconds of a recovery.  Bytes say little about that
time.  A log of hot keys is folded at once, and one of new keys takes 10 to 20 us for each 130 bytes."""

TIMER_PAGE_ROWS: Final = 16_384
"""Pending timers of one kind that an interval reads at a time, those that are due next: 20 to 50 ms, and 5 MB."""

TIMERS_IN_MEMORY: Final = 131_072
"""Pending timers of an interval above which those that are far and whose key is not in memory leave it: 50 MB."""

CACHE_SHARE: Final = 4
"""One part in so many of the memory that a process may use is for state of keys, unless somebody says more or less.  The
rest is for what waits and runs, for Postgres, and for other programs."""

CACHE_LEAST_BYTES: Final = 64 * 1024 * 1024
"""What a process has for state of keys at least, and where nobody has looked how much memory there is."""

CACHE_SMALLEST_BYTES: Final = 1024 * 1024
"""The smallest memory for state of keys that a command takes: what is less is a number whose unit was forgotten."""

CACHE_GROWTH_SHARE: Final = 8
"""One part in so many of that is for intervals that grow until the shares are made anew.  All have equal parts of it."""

CACHE_LOOK_US: Final = 1_000_000
"""How often shares are made anew.  A process loads some 30,000 keys in that time, which is 10 MB."""

SEEN_FIRST_KEYS: Final = 262_144
"""Room of the first page of the filter of keys that an interval has had: 512 KiB."""

SEEN_GROWTH: Final = 8
"""When a page is full, the next one has room for so many times as many keys, because each page costs a test per new key."""

SEEN_PAGES: Final = 2
"""Number of such pages: 4.5 MiB in all, for 2,300,000 keys.  With more keys, the store is asked about each."""

SEEN_BITS_A_KEY: Final = 16
"""Bits per key of a full filter: 1 new key in 70 is taken for an old one and asked for.  A question about a few keys of a
bundle is cheap, and one about all keys is not."""

STATE_PAGE_SLOTS: Final = 256
"""Cells, elements and entries that are read when a key is read.  Of a key with more, the rest is read as hooks ask for it.
Most keys have few, which must cost one read.  Some have millions, which must not be read for each record."""

HOOK_ATTEMPTS: Final = 3
"""Times a key's hook may fail on the same record or timer before the key is quarantined."""

REDRIVE_ELEMENTS: Final = 256
"""Quarantined elements that are read and run together: as many as a marked invocation may have."""

REDRIVE_KEYS: Final = 256
"""Keys whose quarantines are read together when they are short.  So a redrive of many keys costs a read and a checkpoint
for so many of them, and not for each."""

REDRIVE_REQUESTS: Final = 8_192
"""Requests to redrive that are read at once: 10 ms.  A running pipeline asks for as many each second, in turn."""

FIRST_FAILURES: Final = 20
"""The run stops when a hook has failed for so many keys and succeeded for none.  Then the code is wrong and not the data, and
not all of the data should go to quarantine."""

FAILURE_KINDS: Final = 20
"""Kinds of failures, by exception and line of code, of which a run shows the first; the rest are only counted."""

FAILURE_LINE_CHARS: Final = 500
"""What is said of a failure on one line: a message may quote a whole record."""

CHECK_KEYS_SHOWN: Final = 3
"""Keys that `millwheel check` names of each cell that it cannot read: enough to look at, and few enough for a line."""

REJECT_KINDS: Final = 20
"""Kinds of rejected rows of a source that are counted apart: memory does not follow what stands in the rows."""

STOP_GRACE_S: Final = 1.0
"""How long a hook may go on after the run was stopped, before it is interrupted.  Also how long the commit of what was
done may take.  Together they keep Ctrl-C under two seconds."""

SIGNAL_AGAIN_S: Final = 0.01
"""How much later a signal comes again whose exception Python has ignored.  What has ignored it returns in microseconds."""

STOP_PRESSES: Final = 3
"""Ctrl-C ends a run, and ends what keeps it from that.  Whoever presses a third time does not want to wait any more."""

LONG_CALL_S: Final = 10.0
"""A call of user code that has run for so long is named in the log.  A hook should take milliseconds, and a model that
`setup` loads mostly takes less."""

DEATHS_LIMIT: Final = 3
"""A record or timer is quarantined when the process has ended so many times while it ran alone.  Kills from outside rarely
hit the same one three times in a row."""

MARKED_INVOCATIONS: Final = 256
"""Invocations of an interval that are marked in the store before they run, after a process that did not end in order.  After
each further such end there are four times as many, at most 64 times.  That suffices because the input that was read and not
committed, which runs again first, is bounded in bytes."""

MARKED_RECORDS: Final = 256
"""Records of a marked invocation.  If it ends the process, they are tried one by one, with two small commits each: a
second in all.  The invocation waits for the commit of its mark, so a smaller number would slow down every start after a
kill."""

TRUST_US: Final = 600_000_000
"""After serving for so long, a process forgets the unclean ends before it.  The next one counts as the first."""

TIMER_REARM_LIMIT: Final = 10_000
"""So many firings in a row of timers that set each other, none to a later time than they had reached, are taken for an
endless loop.  Timers that get further are no loop, however many they are."""

TIMER_CHAIN: Final = 1_024
"""Timers that one invocation fires and that its own hooks have set.  So a chain that catches up costs one checkpoint for so
many.  At most nine invocations are uncommitted.  Their timers are fewer than the invocations that are marked after a few
kills, where a chain runs one by one."""

TIMER_STALLED_CHAIN: Final = 64
"""The same for timers that do not get further.  They are likely a loop, and wall time passes between invocations only."""

TIMER_INVOCATIONS: Final = 16
"""Invocations of timers between two invocations of waiting records.  Timers must keep up with the watermark, or windows pile
up: pipelines with seven firings for each record exist.  But timers that set timers must not keep records from running."""

STRAGGLER_DELAY_US: Final = 1_000_000
"""How long a weak checkpoint waits for its productions' acks before it stores them (§6.1.3, figure 11)."""

STRAGGLER_PATIENCE_US: Final = 10_000
"""How long weak checkpoints with all their acks wait for an earlier one without, before that one stores what is unacked.  A
shorter time would store productions whose acks are only a little out of order."""

IDLE_RECORD_DELAY_US: Final = 1_000_000
"""Age at which an idle interval records its acks durably, so that receivers can collect ids."""

ID_BUCKET_US: Final = 60_000_000
"""How long consumed record ids stay exact in memory before those that are folded are sealed into a Bloom filter."""

ID_FILTER_ERROR_RATE: Final = 0.01
"""Share of unknown blocks that a full filter finds by chance.  Each costs one read of the store; it takes 10 bits."""

OUTSIDE_ID_LIMIT_BYTES: Final = 1_024
"""An id that an outside client chose; a longer one is more likely a mistake."""

OUTSIDE_WHOLE_BYTES: Final = 40
"""Such an id is kept whole up to this length (a UUID as text has 36 bytes), a longer one as 128 bits of BLAKE2b."""

OUTSIDE_SLACK_US: Final = 6 * 3_600 * 1_000_000
"""How long such an id is remembered unless its source says otherwise: a client that retries does so within hours."""

OUTSIDE_BUCKETS: Final = 4
"""Buckets in a slack.  Each costs one test per id.  An id is remembered for up to one bucket longer than the slack."""

OUTSIDE_FILTER_IDS: Final = 8_192
"""Ids for which a new filter has room at least: 32 KiB."""

OUTSIDE_FILTER_BITS: Final = 24
"""Bits per id of a filter that is full: with eight hashes 1 unknown id in 20,000 is taken for one of its own.  More would
make most bundles of 4,096 wait for the store."""

OUTSIDE_READ_IDS: Final = 4_096
"""Ids that are read at once to fill a filter after a restart: a few ms of the event loop."""

OUTSIDE_DELETE_ROWS: Final = 16_384
"""So many more expired ids than it adds does a fold delete at most, so that deleting keeps up with adding."""

TRACEBACK_LIMIT_CHARS: Final = 8_000
"""The stored traceback of a quarantined record."""

PUBLISH_RECORDS: Final = 10_000
"""Records of a published stream that are kept unless it says otherwise: minutes at human rates, megabytes on disk."""

TAIL_CHUNK_ROWS: Final = 1_000
"""Published records that a reader fetches at a time: bounds its memory, not what it sees."""

STORE_LOCK_TIMEOUT_MS: Final = 15_000
"""A statement that waits longer for a lock gives up and is retried.  The limit is above the idle limit, so that a frozen
process (SIGSTOP in the middle of a transaction) has lost its locks by then."""

STORE_IDLE_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""The server ends a transaction that its client has left open for so long, so that a zombie keeps no locks."""

STORE_STATEMENT_TIMEOUT_MS: Final = 60_000
"""No statement of a healthy pipeline takes seconds; a stuck one must not hold an interval for ever."""

STORE_SILENT_S: Final = 2.0
"""A call that has waited longer for its answer is told with the progress, s."""

STORE_RECONNECT_LIMIT_US: Final = 30_000_000
"""How long a call waits for a Postgres that is restarting before it reports the store as unavailable."""

STORE_POOLER_LOOKS: Final = 3
"""How often two sessions behind a pooler are compared: others may use its sessions meanwhile."""

STORE_CONFLICT_ATTEMPTS: Final = 8
"""Tries of a transaction that deadlocked with a sink's other writers, before it is given back as unavailable."""

FAREWELLS: Final = 3
"""How often a controller that stands by tells the leader that the run is over, before it leaves: a channel may be cut."""

DESERTED_US: Final = 60_000_000
"""How long a leader of a finished pipeline waits for a worker.  Processes that start on many machines, or on Spark, need tens
of seconds; one of them may bring a source that the store has not seen."""

SETTLED_ORDERS: Final = 100
"""How many orders to the leader are kept after they were carried out or refused.  Whoever gave one reads its end within
seconds."""

LEASE_US: Final = 5_000_000
"""How long a member of a cluster may act without a renewal, and so how soon others take over what a dead one owned.  Postgres
may restart within it."""

LEASE_SHORTEST_S: Final = 2.5
"""Shorter leases would leave no time for a second attempt to renew one."""

LEASE_LONGEST_S: Final = 3_600.0
"""A lease that is longer is a mistake in the unit: nobody would take over for an hour."""

LEASE_RENEW_S: Final = 1.0
"""Between two renewals of a lease: four may fail in a row."""

LEASE_RETRY_S: Final = 0.2
"""After a renewal that failed, until the next attempt."""

LEASE_ATTEMPT_S: Final = 2.0
"""How long a renewal may take, so that a connection that is deaf leaves time for another one within the lease."""

LEASE_LOOK_S: Final = 0.25
"""How often a process reads what its lease keeper has confirmed; what is older than that is no reason to look."""

LEASE_CLOSE_S: Final = 0.5
"""How long a lease keeper may take to end by itself: it may be waiting for Postgres."""

OWNER_CHECK_US: Final = 1_000_000
"""How often a process without a watermark to persist asks whether it was superseded, with a small read."""

SNAPSHOT_LEAST_MS: Final = 10
"""Least time between two snapshots: each is a transaction with a sync of the disk, which takes 1 to 10 ms."""

NO_EPOCH_US: Final = 10**15
"""Time between two epochs where none are wanted but at the ends of partitions, in a comparison: 30 years."""

EPOCH_LIMIT_WRITES: Final = 131_072
"""Writes that an interval may have in memory for the next epoch.  When there are more, sources wait, and an epoch begins at
once.  As many as the keys that an interval may have in its log (`UNFOLDED_LIMIT_KEYS`)."""

LOOP_LOG_LIMIT_BYTES: Final = 8_388_608
"""Bytes that the head of a loop logs while a barrier goes round, before sources wait for the end of the epoch.  The log goes
on, because the barrier comes behind what it holds: it ends with what was in the loop when the head cut.  A quarter of what an
inbox holds (`INBOX_LIMIT_BYTES`)."""

EPOCH_LOOK_US: Final = 20_000
"""How often the controller looks whether the next epoch is due: an epoch that a worker waits for begins so soon."""

GATHER_US: Final = 1_000_000
"""Under snapshots all that a cluster owns is placed at once, so a leader that finds nothing placed waits so long for workers
that start at the same time."""

RETURN_LIMIT_US: Final = 5_000_000
"""For workers that were dismissed to join again: one look at the map, a new session and a new lease take about a second."""

RECOVERY_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Log bytes that a recovery decodes and folds at a time: bounds its memory."""

PERSIST_DELAY_US: Final = 10_000
"""Time between two writes of watermarks.  So a value that rises all the time is written at most a hundred times a second."""

REPORT_REST_US: Final = 5_000
"""Between two messages of a worker in which intervals say how far they have come.  A leader writes watermarks half as often.
At 1,000 records/s, a message a record took a fifth of the processor time of the worker with the source."""

RECEIPT_REST_US: Final = 5_000
"""How long a receipt for another worker waits for others.  Whoever has sent a bundle goes on without it, but each frame wakes
a process, and holds up what runs there."""

RECEIPTS_TOGETHER: Final = 4
"""So many are told at once.  A source has at most `UNACKED_LIMIT_READS` reads that nobody has acked."""

ROUND_DELAY_US: Final = 10_000
"""Time between two rounds of a loop while its floor rises: watermarks are not written more often either."""

ROUND_LIMIT_US: Final = 100_000
"""The most that it grows to, doubled by each round that raises nothing.  A loop that waits for an old record then costs ten
rounds a second, and the floor lags two of these behind when it is done."""

DISCOVER_DELAY_US: Final = 1_000_000
"""Time between two searches for new partitions of a source."""

STALL_DELAY_US: Final = 10_000_000
"""How long the watermark of a source may stand still, with nothing under way, before the operator is told why."""

DISCOVER_REST: Final = 4
"""Searches for partitions rest so many times as long as the last one took: a directory of very many files is listed less
often, and takes at most a fifth of the time."""

OPEN_PARTITIONS: Final = 64
"""Partitions that are opened at a time: two commits go with all of them, and a look into each of their files."""

REDRIVE_DELAY_US: Final = 1_000_000
"""Time between two looks for redrives that were asked for."""

READ_REST_US: Final = 1_000
"""Between two reads of a source that gives all it has: for two, records that come one by one wait 0.3 ms longer, and the
whole takes a fifth less processor time."""

ANNOUNCED_REST_US: Final = 500
"""The same of a partition that says when it has rows.  With 1 ms, most rows of a source with 1,000 rows/s would come while
the one before has its rest, and be 0.7 ms late (docs/adr/0057-a-source-may-say-when-it-has-rows.md)."""

PACE_STEP_US: Final = 10_000
"""A replay reads a partition at most so often.  Rows that are due in between come together, and up to so much too late."""

PACE_LATE_US: Final = 10_000_000
"""How long a late row of a replay waits at most for the watermark to pass it: some 10 ms suffice, unless hooks or the
database are slow, and nothing may wait for ever."""

END_DELAY_US: Final = 2_000
"""Time between two checks whether a run that has consumed everything is folded as well."""

LOOKUP_CACHE_ROWS: Final = 65_536
"""Answers of a look-up that one process keeps: some 50 MB of rows of a few hundred bytes."""

SERVICE_FIRST_GUESS_S: Final = 0.05
"""How long a call of a service takes, before one has returned."""

SERVICE_SHORTEST_LOOK_US: Final = 10_000
"""Between two looks for an answer: each is an invocation with a checkpoint."""

SERVICE_LONGEST_LOOK_US: Final = 2_000_000
"""The same when much waits in front: the guess may be wrong."""

SERVICE_LONGEST_PAUSE_US: Final = 60_000_000
"""After failed attempts: a service that is back is asked within a minute."""

SERVICE_SPREAD: Final = 0.25
"""The share of a pause by which those of several keys differ, so that they do not all ask at once again."""

SERVICE_WAITING: Final = 10_000
"""Questions of one process that wait for an answer, above which it takes no more records: half a minute of work for 16
threads at 50 ms each.  Each of them is a row of state, and one for each key is in memory.  What one invocation brings may
come on top."""

SERVICE_FORGET_US: Final = 300_000_000
"""When a key that waits and was not looked at counts no more: its interval has moved away.  Here it would be looked at once a
minute."""

SERVICE_KEPT_ANSWERS: Final = 65_536
"""Questions of one process, above which answers that nobody has fetched are dropped: their keys may have moved away."""

FILE_ROWS: Final = 100_000
"""Rows of one file of a sink: a writer holds them in memory, and readers of Parquet want files of some MB."""

SLICES_OF_A_WINDOW: Final = 100_000
"""Of a sliding window that is made of slices: each end of one looks for all of them.  Lengths with hardly a common part have
more, such as 10 s every third of a second; then each window adds its records up by itself."""

BARE_LENGTH_US: Final = 1_000
"""A length of a window that is a number alone, and shorter than this, was meant in another unit than microseconds."""

FILE_AGE_US: Final = 60_000_000
"""Wall time after its first row at which a file of a sink is sealed: how long a slow stream keeps its readers waiting."""

ITERATION_LOSSES_IN_A_ROW: Final = 8
"""Lost executors of an iteration on Spark without a completed superstep between them, after which the cluster is taken to
be unfit for the work."""

ITERATION_CONSERVED_SHARE: Final = 1e-9
"""By how much of itself the total of a conserved column may differ after a compensation: sums of floats in another order
differ by less."""

# Sources and their partitions

READ_LIMIT_ROWS: Final = 4_096
"""Rows of one read: some milliseconds of keying and encoding, and a bundle that is not too long for an invocation."""

READ_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one read: they stay in memory until they are acked."""

LONG_ROWS: Final = 16
"""Rows in Python that are taken at once before their length is looked at: with the longest values, 64 MiB."""

FIRST_READ_ROWS: Final = 1_024
"""Rows of a partition's first read, when nobody knows yet how long its rows are."""

UNACKED_LIMIT_READS: Final = 12
"""Reads of a partition that are not acked above which it pauses: enough to fill the way to the commit and back."""

ADVANCE_DELAY_US: Final = 200_000
"""Between two writes of a position: what is read again after a crash is dropped as delivered, so it may lag."""

POLL_DELAY_US: Final = 1_500
"""Before a partition that had nothing is read again: a small part of the latency of a commit."""

SILENCE_SHARE: Final = 64
"""A partition that has been silent is read again after such a share of its silence: what comes then is late by a little of
what nobody has missed."""

SILENT_POLL_US: Final = 10_000
"""And after so long at most.  With `POLL_DELAY_US` for ever, a process that waits for input takes 7 to 18% of a processor."""

ANNOUNCED_POLL_US: Final = 20_000
"""The same for a partition that says when it has rows: as old as the promise of a silent one may be, and few enough looks
that a process without input takes next to no time."""

PROBE_READS: Final = 16
"""One in so many short reads is followed by another at once in any case, because sources change."""

# Intervals

RETIRED_LIMIT_CHANNELS: Final = 64
"""Channels of void cores that are remembered. Should a receiver ever miss that one is done, it keeps some ids."""

SUSPECT_WIDENINGS: Final = 3
"""Times that the number of invocations which are marked grows, four times each, while one interval's processes go on
dying."""

REDRIVE_AGAIN_US: Final = 10_000_000
"""A redriven element whose row was refused is tried again after this time, because each try restarts the interval."""

FOLD_LIMIT_ROWS: Final = 16_384
"""Rows of one fold: a transaction of some hundred milliseconds, so that commits do not wait long for its locks."""

WEAK_INFLIGHT_CHECKPOINTS: Final = 64
"""As `INFLIGHT_LIMIT_CHECKPOINTS`, of an interval with weak productions: each waits for the acks of these before its commit,
so more of them are under way."""

ENTRY_OVERHEAD_BYTES: Final = 200
"""What a key in memory costs besides its values, roughly."""

SLOT_OVERHEAD_BYTES: Final = 64
"""What a cell or an entry of a key in memory costs besides its value, roughly."""

EVICTION_SAMPLE_KEYS: Final = 256
"""Keys of one sample of an eviction: large enough that those which go are among the best, small enough to sort."""

EVICTED_SHARE: Final = 6
"""Of a sample, one key in so many is evicted, unless more must be.  To look at so many keys costs 5 us, and to load a key
that should have stayed costs 20 to 50 us."""

EVICTED_ROOM: Final = 16
"""An eviction frees one part in so many of a cache.  With 8, windows loaded 3% more keys, and with 32, 3% fewer, in three
rounds of alternating runs.  Each eviction lists all keys, so a larger number costs more."""

EVICTION_SCAN: Final = 65_536
"""Keys that one eviction looks at, four times what a fold makes clean.  Looking at all keys, most of them dirty, took a fifth
of the time of a pipeline that only made new keys."""

PACE_SMOOTHED: Final = 0.5
"""Weight of the newest measurement.  A watermark moves unevenly, so it is averaged."""

GAPS_OVERDUE: Final = 2
"""Gaps after which a key that was not read again is expected by its age only: it may never be read again."""

LIST_LIMIT_IDS: Final = 1_024
"""Ids that are listed in one run before a new one begins: what is sealed, or collected, at a time."""

SHORT_RUN_IDS: Final = 16
"""A dense run of fewer ids is not worth a run of its own: it is listed."""

LONG_RUN_BLOCKS: Final = 64
"""A dense run over more blocks is never sealed: its two ends take fewer bytes than its share of a filter."""

MINIMA_SAMPLE: Final = 1_024
"""From so many watermarks the authority learns how far apart they are."""

MINIMA_STRETCH: Final = 512
"""Watermarks that the authority sorts at a time, about."""

# Processes

TURN_US: Final = 4_000
"""What a turn of the shell's loop may take, us: then input and output have their time."""

LONG_TURN_US: Final = 1_000
"""After a turn of so many us the event loop turns twice, so that an answer of the store that has come is heard at once and
not after one more turn.  That takes 10 us."""

LAST_WORDS_LIMIT_S: Final = 2.0
"""What the last write of marks may take when a run ends, s: without it the store suspects what is innocent."""

STORE_RETRY_DELAY_S: Final = 0.2
"""Between two tries of a call that the store did not answer, s."""

WARNING_DELAY_S: Final = 10.0
"""Between two warnings of the same failure, s."""

PROGRESS_DELAY_S: Final = 1.0
"""Between two reports of progress, s."""

WATCH_DELAY_S: Final = 0.5
"""Between two looks whether the embedded Postgres still runs, s."""

DAILY_ID_LIMIT_BYTES: Final = 200
"""Longer ids are stored as their digest, because an id is also the tag of a timer, which has at most 256 bytes."""

FORGET_SHARES: Final = 8
"""A key that is forgotten some time after its last record writes that record down once in so small a share of that time:
each record would be a write, and a key is kept for as much longer."""

STATELESS_KEYS: Final = 256
"""Keys that the records of such a stage are spread over: one that fails stops so small a part of the rest."""

NUMERIC_INTEGER_DIGITS: Final = 131_072
"""What Postgres' `numeric` holds before the point."""

NUMERIC_FRACTION_DIGITS: Final = 16_383
"""What Postgres' `numeric` holds after the point."""

RATE_REPORTS: Final = 5
"""Reports that are kept, a second apart: the rate is that of the last five seconds."""

ARCHIVE_STALE_S: Final = 3_600.0
"""A class archive that is not finished after so long, s, was left behind by a process that has died."""

ARCHIVE_JAVA_LIMIT_S: Final = 60
"""What a JVM that writes an archive may take, s: without one a start is slower, and nothing else."""

ITERATION_BUS_WAIT_MS: Final = 10_000
"""A listener bus that has not emptied by then is overwhelmed; what it says is then taken as it is."""

MERGE_EVERY_US: Final = 100_000
"""What a combiner has merged is given so often: the delay is small beside that of a window, and a hot key has thousands of
records in it."""

MERGE_SHARDS: Final = 256
"""Shards of a combiner: each is an interval, and the numbers have three digits."""

MERGE_LONGEST_US: Final = 366 * 86_400 * 1_000_000
"""Nobody means more than a year by a stretch of time in which values are merged."""

# The cluster

MISSING_US: Final = 10 * 1_000_000
"""A process of a cluster that has waited so long for a controller or a worker says so: longer than the lease of one that has
died, which another one then follows, and short enough for whoever looks at a start."""

CLUSTER_LOOK_US: Final = 500_000
"""Between two looks at the map: a worker that misses a message of the leader finds out so much later."""

HEARD_LOOK_US: Final = 2_000
"""Between two looks whether a controller has told the watermarks that are stored, before hooks run."""

BEHIND_LOOK_US: Final = 10_000
"""Between two looks whether receivers have acked what was sent before an interval was cut.  An owner folds acks when it is
idle, or after 1,000 checkpoints."""

BEHIND_NOTE_US: Final = 5 * 1_000_000
"""After so long a wait for these acks the log says so: mostly it takes some milliseconds."""

HAND_OVER_LIMIT_US: Final = 5 * 1_000_000
"""For a planned move; then the leader places an interval without the word of its owner, and the fence does the rest."""

HAND_OVER_LOOK_US: Final = 10_000
"""Between two looks whether an interval that is handed over has nothing left to do."""

MOVES_AT_ONCE: Final = 8
"""Intervals that move at a time for the sake of balance: the others go on meanwhile."""

LEAD_EVERY_US: Final = 500_000
"""Between two extensions of a leader's lease, and between two attempts of the others to lead."""

LOAD_EVERY_US: Final = 5 * 1_000_000
"""Between two reports of a worker's loads: long enough that a burst is not taken for a load."""

LOAD_SAMPLE_BUNDLES: Final = 16
"""Of so many bundles one key is remembered: a sample costs nothing that is felt."""

LOAD_SAMPLE_KEYS: Final = 128
"""Keys that are remembered of an interval; the median of so many is within a tenth of the middle nearly always."""

HOT_KEY_BUNDLES: Final = 4
"""Of so many bundles for an interval one is counted.  What that costs is in docs/benchmarks.md."""

HOT_KEY_LITTLE: Final = 8
"""Up to so many keys of a bundle are counted one by one, which takes less time than to count them together first."""

HOT_KEY_ROOM: Final = 64
"""Keys that a sketch remembers at least: a share is too low by a 64th at most, and a hot key has several times that."""

HOT_KEY_PERMILLE: Final = 50
"""A key is hot from this share of its interval's records on: with twenty such keys no split by keys makes it even."""

HOT_KEYS_SHOWN: Final = 5
"""Hot keys of an interval that are told: who spreads one spreads the first of them."""

HOT_KEY_LEAST_RECORDS: Final = 200
"""Counted records below which nothing is said: of fewer, any key may be a large share by chance."""

SKEW_PATIENCE_US: Final = 5 * 1_000_000
"""A source that is too far ahead goes on when the watermark has stood for so long and everything waits for this source: a
window or a hold that is longer than the bound would wait for ever."""

STANDSTILL_US: Final = 2 * 1_000_000
"""How long the same thing must have kept a watermark before a worker tells it: what moves needs no explanation."""

STANDSTILL_INTERVALS: Final = 3
"""Intervals of a computation that a worker looks into: when the oldest is mended, the next one is seen."""

STANDSTILL_TEXT: Final = 1_000
"""Characters of what keeps a watermark that are told: the path of a file and why it is waited for, with the setting that lets
it go on, are some 500.  A key may be longer."""

LOAD_GAP_PERMILLE: Final = 400
"""Loads that differ by less of a core are left alone: a move costs more than it brings."""

LOAD_REPORTS: Final = 3
"""Reports in a row that say so before anything moves."""

LOAD_REST_US: Final = 30 * 1_000_000
"""After a move or a split for the sake of load, until the next one: its effect has to be seen first."""

STRANGER_LOOKS: Final = 4
"""Looks at the map, at least, during which words of a worker are kept that the map does not name yet."""

# The store

PART_FILES_REST_S: Final = 0.5
"""Between two looks for sealed parts; a file is that much later than its seal."""

STORE_CANCEL_LIMIT_S: Final = 5.0
"""What cancelling a statement may take, s: then its connection is given up."""

STORE_LOOK_S: Final = 0.1
"""Between two looks at a connection of which the event loop may have forgotten to tell, s."""

STORE_FIRST_DELAY_S: Final = 0.02
"""After the first conflict or lost connection, s; later tries wait longer."""

STORE_LONGEST_DELAY_S: Final = 1.0
"""Between two tries to connect, s, at most: a server that is back is found within a second."""

SERVER_START_LIMIT_S: Final = 120.0
"""Crash recovery takes seconds; a slow disk gets two minutes."""

SERVER_ANSWER_LIMIT_S: Final = 5
"""What a server that runs may take to answer a look at it, s; it is asked again after."""

SERVER_DOUBT_S: Final = 10.0
"""A server that ends again and again while it starts, for one reason, is given up after so long.  What is left of a killed
one is mostly gone by then, and is waited for longer."""

SERVER_START_SAID_S: Final = 2.0
"""A start that takes longer is said: most take a quarter of a second."""

SERVER_STOP_LIMIT_S: Final = 30.0
"""What an embedded server may take to stop, s: it writes what it has in memory first."""

DISK_FULL_BYTES: Final = 1 << 20
"""A disk with less room is told as the reason of a server that has said nothing: it writes some 100 KB when it starts."""

LOG_TAIL_BYTES: Final = 65_536
"""Of an embedded server's log, where the reason of its end is looked for."""

SERVER_POLL_S: Final = 0.01
"""Between two looks whether an embedded server has started or stopped, s."""

SOCKET_PATH_LIMIT_BYTES: Final = 103
"""The shortest limit of the supported systems (macOS); Linux allows 107."""

# Files

FILE_CHUNK_BYTES: Final = 1 << 20
"""Bytes per read: bounds a batch, and large enough that the call is not felt."""

FILE_HEAD_LIMIT_BYTES: Final = 4_096
"""A file is known by its first bytes, at most so many."""

FILE_TAIL_BYTES: Final = 1_024
"""A position is known by the bytes before it, at most so many."""

FILE_TAIL_LINES: Final = 32
"""The tail is made of at most so many lines, as it is made anew for every batch."""

REJECT_SAMPLE_BYTES: Final = 4_096
"""What is kept of a line that is longer than the limit, for the reject file."""

FILE_SCAN_ROWS: Final = 4_096
"""Rows per block of an exact watermark."""

PACED_BLOCK_ROWS: Final = 1_024
"""Rows that are read ahead."""

SPARK_LOG_ATTEMPTS: Final = 3
"""At a log that Spark compacts while it is read."""

FILE_QUIET_US: Final = 5 * 1_000_000
"""A file followed by a later one is finished when it was not written for so long: writers switch within seconds."""

RENAMED_LOOKS: Final = 5
"""Looks at a file that is not what it should be, before it is refused: rotation may just be renaming it."""

RENAMED_DELAY_S: Final = 0.02
"""Between two of them.  A rotation renames all its files within milliseconds."""

LISTED_FILES: Final = 256
"""Files that are listed between two turns of the event loop: 2 ms."""

OPENED_FILES: Final = 32
"""Files that are opened between two turns."""

ASKED_FILES: Final = 4_096
"""Files that the store is asked about at a time: bounds memory, however many are finished."""

ASKED_NAMES: Final = 2
"""Names that a new file may get, and that the store is asked for before anybody knows whether it is new."""

PARQUET_DECODE_ROWS: Final = 65_536
"""Rows that pyarrow decodes at once: bounds memory when row groups are large."""

PARQUET_SCAN_ROWS: Final = 8_192
"""Rows per block of an exact watermark."""

WAITING_SPANS: Final = 64
"""Spans into which the lateness of a join is cut: with n timers that wait under one key, to add one costs n / 64 and 64."""

JOIN_BUCKET_US: Final = 1_000_000
"""A join that aggregates drops partners that it no longer needs by so much event time at once, at least: with less, a key
with many partners would set a timer for each."""

# Channels between processes

CHANNEL_BEAT_S: Final = 1.0
"""Between two signs of life on a stream that has nothing to carry, s."""

CHANNEL_SILENT_BEATS: Final = 7
"""Beats without a sign of life after which a stream is cut.  gRPC's own keepalive does not notice a proxy that answers and
forwards nothing.  A hook may keep a whole process for a few seconds, and a cut makes it send everything again."""

CHANNEL_FRAME_BYTES: Final = 256 * 1024
"""What one frame carries, unless one message is larger.  Each frame is a sign of life: at 40 kB/s one still passes before
the receiver takes the silence for a cut.  At 50 us a frame, larger ones would not be faster."""

CHANNEL_FRAME_LIMIT_BYTES: Final = 1024 * 1024
"""A frame that is longer is not one of ours.  gRPC ends its stream before it is read."""

CHANNEL_MESSAGE_LIMIT_BYTES: Final = 1024 * 1024 * 1024
"""The longest message.  A bundle is a part of one checkpoint, which Postgres limits to so much."""

CHANNEL_QUEUE_LIMIT_BYTES: Final = 1024 * 1024 * 1024
"""What may wait for one peer, before the channel is cut.  After a cut everything that is unacked is sent at once, and must
not fill the queue again: this suffices for 32 intervals with all that they may have unacked.  Bundles share the memory of
what their sender keeps until it is acked."""

CHANNEL_MESSAGE_OVERHEAD_BYTES: Final = 200
"""What a waiting message takes besides its fields, roughly."""

CHANNEL_GREETING_LIMIT_S: Final = 5.0
"""Within this time both ends of a stream have named themselves, s.  A process learns of a new one within half a second."""

CHANNEL_STREAMS_LIMIT: Final = 1_024
"""Streams that one process serves: more than any cluster needs, and less than the files that it may open."""

HTTP2_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What may be under way to a stream without being read: more than one frame, so that a sender need not wait for a
reader whose event loop is a few milliseconds late."""

HTTP2_FRAME_BYTES: Final = 256 * 1024
"""The longest HTTP/2 frame that is taken; between 2**14 and 2**24 - 1.  It holds what `CHANNEL_FRAME_BYTES` does: each
piece costs some 50 us."""

HTTP2_HEADERS_LIMIT_BYTES: Final = 16 * 1024
"""Names and values of one stream.  Ours have 200 bytes."""

HTTP2_STREAMS_LIMIT: Final = 16
"""Streams at one time on a connection.  Ours has one.  Each may have a window full of what is unread, and none of them may
have to wait for another one's reader."""

HTTP2_CONNECTIONS_LIMIT: Final = 2 * CHANNEL_STREAMS_LIMIT
"""Connections to one process: each stream has one, and one that breaks is replaced before its end is noticed."""

HTTP2_LINGER_S: Final = 1.0
"""After the status of a stream, the time in which its caller ends it as well, s.  What it writes meanwhile is dropped."""

HTTP2_UNSENT_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""What waits for a connection's other end when it asks (pings, settings) and does not read.  Then it is closed.  A frame
and what TLS adds have room."""

CHANNEL_CLOSE_LIMIT_S: Final = 2.0
"""How long a process that ends waits until its last words are out, s."""

CHANNEL_FAREWELL_S: Final = 10.0
"""For how long nobody is warned that a peer does not answer that has closed its channel in order, s: it ends."""

DIAL_FIRST_DELAY_S: Final = 0.05
"""Before the second try to reach a peer, s.  Each further one waits twice as long, more or less by chance."""

DIAL_LONGEST_DELAY_S: Final = 1.0
"""Between two tries at most, s: a peer that is back is reached within two seconds."""

DIAL_STEADY_S: Final = 1.0
"""A stream that has lasted so long, s, was a good one: when it breaks, the peer is called again at once."""

CHANNEL_IDLE_PING_S: Final = 20.0
"""After so long, s, a connection of channels on which no stream is open is closed, and a client that pushes is asked whether
it is there.  It frees what a machine that is gone has left."""

AUTHORITY_LIFETIME_DAYS: Final = 3_650
"""How long a cluster's own authority is valid.  When it ends, every process needs new certificates at once."""

CERTIFICATE_LIFETIME_DAYS: Final = 365
"""How long a process's certificate is valid.  There is no list of those that were lost, so they end by themselves."""

CERTIFICATE_WARNING_DAYS: Final = 30
"""A process that starts with a certificate that ends within this time says so."""

CLOCK_SKEW_S: Final = 300
"""A certificate is valid a little before it was made, s, because clocks of machines differ."""

RESTART_FIRST_DELAY_S: Final = 0.2
"""Until `millwheel up` starts a process again that has died; twice as long with every death that comes soon."""

RESTART_LONGEST_DELAY_S: Final = 5.0
"""The longest of these waits: a Postgres that is away is looked for often enough."""

RESTART_YOUNG_S: Final = 10.0
"""A process that dies before this age has died soon."""

RESTART_FAILURES: Final = 5
"""A process that ends with an error of its own so often in a row, each time soon, will do so again."""

UP_STOP_LIMIT_S: Final = 15.0
"""How long a process may take to end in order, before `millwheel up` kills it: two interrupted hooks and last words."""

UP_CONTROLLER_LIMIT_S: Final = 5.0
"""How long controllers may stay after the last worker has seen the end of the run, before they are asked to end."""

UP_WORKER_LIMIT_S: Final = 5.0
"""How long workers may stay after all controllers have seen the end of a run.  Who joins after it hears of it from nobody."""

UP_LINE_LIMIT_BYTES: Final = 1024 * 1024
"""The longest line of a process that is passed on in one piece."""

HOSTED_TAIL_LINES: Final = 20
"""Lines of a worker on an executor that the driver is told when it has ended; Spark keeps all of them."""

LAST_LINES_S: Final = 1.0
"""How long the last lines of a process that has ended are waited for.  They are there mostly; but a process that a hook has
started may keep the pipe open for ever."""

HOSTED_LOOK_S: Final = 0.5
"""How often a task looks whether Spark's daemon above it still lives; it costs a system call."""

HOSTING_LOOK_S: Final = 0.5
"""How often a driver looks after the jobs of its workers: an operator who scales sees it at once."""

HOSTING_PROGRESS_S: Final = 5.0
"""How often `millwheel up --on` says how far the run is; it asks Postgres for that."""

HOSTING_PATIENCE_S: Final = 15.0
"""How long a worker waits for a core before that is said: an executor that was killed comes back in about eight seconds."""

# Records that outside clients push

PUSH_CLIENT_RECORDS: Final = 65_536
"""Records of one client that are read from its stream and not durable.  Above that, its stream is not read."""

PUSH_CLIENT_BYTES: Final = 16 * 1024 * 1024
"""The same in bytes.  It is half of what an interval takes, so one client does not keep the others waiting."""

PUSH_TOTAL_BYTES: Final = 64 * 1024 * 1024
"""The same of all clients of a source.  It bounds memory, however many clients there are."""

PUSH_CLIENTS_LIMIT: Final = 256
"""Clients of one source at a time: each is a stream, and a few kB."""

PUSH_MESSAGE_BYTES: Final = 256 * 1024
"""What a client sends at once, unless one record is larger: a few hundred records cost as little each as thousands."""

PUSH_MESSAGE_LIMIT_BYTES: Final = VALUE_LIMIT_BYTES + 1024 * 1024
"""What a source takes at once: the largest record, and much more than a client sends otherwise."""

PUSH_REASON_LIMIT: Final = 1_000
"""Characters of a reason why a record is refused.  An error of user code may have a whole value in it, and a client takes
4 MB at once."""

PUSH_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""What a client keeps until it is durable.  Above that, `push` waits."""

PUSH_WINDOW_RECORDS: Final = 32_768
"""The same in records."""

PUSH_LISTEN_LIMIT_S: Final = 10.0
"""How long a source waits for its port, s: the process that had it before may need some seconds to leave it."""

PUSH_LISTEN_DELAY_S: Final = 0.2
"""Between two tries to listen there, s."""

PUSH_PATIENCE_S: Final = 120.0
"""How long a client tries while nothing becomes durable, s: longer than a restart of a pipeline and of its Postgres takes."""

OVERVIEW_ROWS: Final = 2_000
"""Rows of a kind that a look at the whole store counts for one interval at most.  The log of an interval that folds has
fewer."""

ORDER_WAIT_S: Final = 30.0
"""How long `millwheel interval` waits for the leader: a worker may take some seconds to let go of an interval."""

ORDER_LOOK_S: Final = 0.1
"""How often it looks meanwhile."""

STATUS_EVERY_S: Final = 1.0
"""How often `millwheel status --follow` looks at the store."""
