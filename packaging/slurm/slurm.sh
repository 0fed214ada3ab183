# Settings of Forebay's hooks for Slurm, as variables of bash; on the controller and on all nodes.

# PrologEpilogTimeout of slurm.conf must exceed the larger of STAGE_IN_S, STAGE_OUT_S and DRAIN_S by
# ten minutes: 4200 with these values. Otherwise Slurm drains nodes.

# Longest time, in seconds, for the stage-in of a job: for all its files together, on the controller,
# and again in the prolog of each node.
#STAGE_IN_S=3600
# Limit on bytes a second from the PFS for the stage-in of one job, as 500MB/s.
#STAGE_IN_RATE=
# Longest time, in seconds, for which the epilog keeps a node until the file system has what the job
# wrote. With `#FB stage-out`, the second one.
#DRAIN_S=60
#STAGE_OUT_S=3600
# Longest time, in seconds, for which hooks wait for an agent or slurmctld that is restarting.
#AWAY_S=60
# Largest tier of one job on a node, which is not counted in the memory of the job. Empty: none.
#TIER_MAX=
