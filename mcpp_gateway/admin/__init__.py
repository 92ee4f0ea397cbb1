"""`mcpp admin`: the admin's interface of a gateway, from the command line."""
