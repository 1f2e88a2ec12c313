"""Sentinels: processes beside the ranks, which notice when a rank dies or hangs, and end the others.

The sentinel of one rank is `python -I -S engine/watchdog RANK PID BOARD SECONDS`. It uses the standard library and
engine.errors only. guard.py is what every sentinel does for its own rank; rank 0's sentinel also runs the hub (hub.py),
which decides for all ranks. A rank writes what it is doing on its board (board.py), memory that its sentinel reads
without the rank's help.

Who can reach the hub. It listens on loopback where all ranks share a network, else on the addresses that the ranks use,
and stops listening when all have come. It hangs up on connections that do not send the token at once.

A rank that dies. Every rank holds a TCP connection to the hub. When a connection ends without a farewell its rank has
died: the hub prints that once, with the last snapshot, and has every sentinel kill its own rank. The farewell is the
    last
thing that a rank does: what comes after MPI_Finalize can crash, too. One process sees all the ends in the order in
which the kernel closes the connections; sentinels that each watched their own rank would be overtaken by a launcher
that kills the others at once.

A rank that hangs. Its sentinel tells the hub, which asks all sentinels where their ranks are, prints the answers once,
and ends the ranks likewise. The hub lets the run go on, until a sentinel complains again, if a rank that waits for no
other has made progress: that one is slow, and the others wait for it. It also does if all ranks have been stopped by a
signal: somebody has suspended the run.

A supervisor that is killed (supervise.py). Each sentinel notices, and has its own rank stop in order.

What a killed rank leaves. MPI's files of shared memory outlive it, and so do copies of data that were made for the run.
Its sentinel removes both, the copies only if no other process reads them.

    rank 0 -> sentinel 0    listen REACH                         host (loopback) or network; answer, for all ranks:
    sentinel 0 -> rank 0    TOKEN HOST:PORT ...                  where the hub listens until all have come
    rank -> its sentinel    hub TOKEN HOST:PORT ...              end of file: the rank has ended
                            ranks NUMBER                 of them all
                            watch SECONDS                        0: not at all
                            saved FILE                   rank 0's: where the run could go on
                            outlive 0|1                  rank 0's: whether the others go on when a rank dies
                            leaves [[LOCK, ...], [FOLDER, ...]]  JSON; see World.leaves()
                            keeps [FOLDER, ...]          JSON; see World.keeps()
                            child PID                    forked by the rank: killed if the rank does not end well
                            bye                          the rank ends well
    rank -> hub             rank TOKEN RANK PID HOST             answer: welcome
                            here                         has read it: if the connection ends now, the rank has died
                            fail                                 answer: first, or late if another has failed before
                            complete                     all files are written; ranks only have to end
                            bye                          the rank ends well
    sentinel -> hub         guard TOKEN                          answer: welcome
                            here                         has read it; from now on the hub may send where, wait or stop
                            stuck SECONDS                        answer: where, or wait if it is not to be judged now
                            at RANK PID HOST IDLE STATE WAITS TEXT   answers `where`; see report.Answer
"""
