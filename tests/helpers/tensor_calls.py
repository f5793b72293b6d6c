"""What a GPU would have to wait for: functions of tensors that are counted where a CPU does the work."""

from collections import Counter

from torch.overrides import TorchFunctionMode

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class TensorCalls(TorchFunctionMode):
    """Inside it functions of tensors are counted, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.counts[getattr(func, "__name__", "")] += 1
        return func(*args, **(kwargs or {}))

    @property
    def reads(self):
        """How often values were read back, for which a GPU is waited for."""
        return sum(self.counts[name] for name in READS)
