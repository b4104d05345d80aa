"""Background threads that make batches ahead, in the order they were asked for. Bounded: only the consumer asks."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from runview.batch import Batch

Work = Callable[[int, int], Batch]
_Task = tuple[int, int, int] | None
_Result = tuple[int, Batch | None, BaseException | None]


class Workers:
    """`n_threads` threads over `work(step, micro)`; with 0, `get` does the work itself.

    Request i goes to thread i mod n and its result comes back over that thread's own queue: order needs no lock.
    Results carry the request's number, so one that is no longer wanted (after a seek, an error, an interrupt) can
    never be taken for another. An error is raised by the `get` that would have returned its batch.
    """

    def __init__(self, work: Work, n_threads: int, prefetch: int) -> None:
        self._work, self._limit = work, prefetch if n_threads else 1
        self._asked: dict[int, tuple[int, int]] = {}
        self._tasks: list[SimpleQueue[_Task]] = [SimpleQueue() for _ in range(n_threads)]
        self._results: list[SimpleQueue[_Result]] = [SimpleQueue() for _ in range(n_threads)]
        self._next_put = self._next_get = 0
        self._threads = [
            threading.Thread(target=_run, args=(work, self._asked, tasks, results), name=f"runview-{number}", daemon=True)
            for number, (tasks, results) in enumerate(zip(self._tasks, self._results, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_room(self) -> bool:
        return len(self._asked) < self._limit

    def put(self, step: int, micro: int) -> None:
        """Ask for a batch; call only while there is room."""
        number = self._next_put
        self._asked[number] = (step, micro)
        self._next_put += 1
        if self._threads:
            self._tasks[number % len(self._threads)].put((number, step, micro))

    def get(self) -> Batch:
        """The batch asked for first; raises what its making raised."""
        number = self._next_get
        if not self._threads:
            batch: Batch | None = self._work(*self._asked[number])
            error: BaseException | None = None
        else:
            found, batch, error = self._results[number % len(self._threads)].get()
            while found != number:  # left over from before a drain
                found, batch, error = self._results[number % len(self._threads)].get()
        del self._asked[number]
        self._next_get = number + 1
        if batch is None:
            raise error or RuntimeError("a worker returned nothing")
        return batch

    def drain(self) -> None:
        """Forget all that was asked for. Errors of batches that nobody wants any more are of no interest."""
        self._asked.clear()
        self._next_get = self._next_put

    def close(self) -> None:
        """Stop and join the threads; what is still asked for is not made."""
        self._asked.clear()
        for tasks in self._tasks:
            tasks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _run(
    work: Work,
    asked: dict[int, tuple[int, int]],
    tasks: "SimpleQueue[_Task]",
    results: "SimpleQueue[_Result]",
) -> None:
    while (task := tasks.get()) is not None:
        number, step, micro = task
        if number not in asked:
            continue
        try:
            results.put((number, work(step, micro), None))
        except BaseException as error:  # handed to the consumer, which raises it
            results.put((number, None, error))
