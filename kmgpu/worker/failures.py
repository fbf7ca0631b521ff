"""What an exception of a framework or of a recipe means to a user: out of memory, or no deterministic form."""

from __future__ import annotations

from kmgpu.errors import KmgpuError, OutOfMemory, UsageError
from kmgpu.job import Job

# torch.OutOfMemoryError, its CPU allocator, tf.errors.ResourceExhaustedError, XLA's status, the kernel's words, C++'s
_OUT_OF_MEMORY = (
    *("out of memory", "oom when allocating", "resource_exhausted", "resourceexhausted", "allocate memory"),
    *("not enough memory", "bad_alloc"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a process failed because an allocation did, of the host or of a device."""
    said = f"{type(error).__name__}: {error}".lower()
    return isinstance(error, (MemoryError, OutOfMemory)) or any(words in said for words in _OUT_OF_MEMORY)


def meaning(
    error: Exception, job: Job, *, process: int, processes: int, batch_size: int | None, peak_bytes: int
) -> KmgpuError | None:
    """Return the error that says in one sentence what an exception means, or None where it speaks for itself."""
    cause = error.__cause__ if isinstance(error, KmgpuError) else error  # recipe() and Keras's build are wrapped
    if not isinstance(cause, Exception) or isinstance(cause, KmgpuError):
        return None
    said = " ".join(str(cause).split())[:300]
    what = type(cause).__name__ + (f": {said}" if said else "")
    if is_out_of_memory(cause):
        batch = "" if batch_size is None else f"global batch {batch_size}, "
        return OutOfMemory(
            f"process {process} of {processes} ran out of memory ({batch}peak {peak_bytes / 2**20:,.0f} MiB): {what}; "
            "use a smaller --batch-size, accumulate in the recipe, or more devices"
        )
    if job.deterministic and "determinis" in said.lower():
        return UsageError(f"--deterministic: {what}; leave it out, or use another operation in the recipe")
    return None
