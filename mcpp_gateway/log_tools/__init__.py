"""The command `mcpp log`: tools that read a pod's log in files, or write a new one."""
