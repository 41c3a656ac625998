"""What an interval knows of its keys: state in memory, timers, holds, and which of them expire or leave memory."""
