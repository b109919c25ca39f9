from __future__ import annotations

from tests.bench.conftest import one_blas_thread_in_processes
from tests.bench.in_process import contenders_in_process
from tests.conftest import no_services_of_this_user, no_waiting_for_the_disk, one_blas_thread, rng

__all__ = [
    "contenders_in_process",
    "no_services_of_this_user",
    "no_waiting_for_the_disk",
    "one_blas_thread",
    "one_blas_thread_in_processes",
    "rng",
]
