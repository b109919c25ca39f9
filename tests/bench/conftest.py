from tests.bench.in_process import contenders_in_process

__all__ = ["contenders_in_process"]
