"""Numbers read one by one from tensors, for each of which a GPU would be waited for."""

from torch.utils._python_dispatch import TorchDispatchMode


class Reads(TorchDispatchMode):
    """Counts them in its block.

    Attributes
    ----------
    count
        How many there were; none of a whole tensor by `tolist`.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ == "_local_scalar_dense"
        return function(*args, **kwargs or {})
