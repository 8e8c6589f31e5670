"""The launcher: the command ``tacorun``, which starts a job's ranks on this host and on others.

    tacorun -np 4 -H h1:2,h2:2 python train.py

``python -m taco_torch.launch`` is the same. docs/launch.md is its page. Nothing here imports torch:
a launcher, and the supervisor that it starts on every host, run in a Python without it.

The parts: tacorun.py is the command; arguments.py, tuning.py and hosts.py read what the user has
said; link.py and ssh.py reach a host, where remote.py supervises ranks; session.py holds the links
of a job together; fixed_job.py runs ranks that are given, elastic_job.py ranks that come and go,
who meet by meeting.py (the launcher's side) and member.py (a rank's).
"""
