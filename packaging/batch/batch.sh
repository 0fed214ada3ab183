# Settings of Forebay's scripts for PBS and Flux, as variables of bash; on all nodes.

# Rate limit that each job gets, for its reads and writes on all nodes together, as 500MB/s. Empty:
# none.
#JOB_RATE=
# Longest time, in seconds, for which the end of a job keeps a node until the file system has what
# its user has written to the tier. Less than the time that the batch system allows.
#DRAIN_S=60
# Longest time, in seconds, for which an agent is waited for that restarts.
#AWAY_S=10
