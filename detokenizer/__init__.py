"""From token ids to text: incremental, with stop strings, one message per step."""
