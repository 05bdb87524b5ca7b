"""The coordinator's side: startup kits, the server's part of a run, and the commands that follow one."""
