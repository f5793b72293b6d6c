"""The largest tensor that some work makes, and the largest that it reads."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Watches the operations of torch inside a block: no views count as made, nor what an operation does inside.

    Attributes
    ----------
    made
        Bytes of the largest.
    read
        Entries of the largest, views counted whole.
    """

    def __init__(self):
        super().__init__()
        self.made = self.read = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = tensors(args, kwargs)
        result = function(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        new = [tensor.untyped_storage() for tensor in tensors(result)]
        self.made = max(self.made, *(part.nbytes() for part in new if part.data_ptr() not in known), 0)
        self.read = max(self.read, *(tensor.numel() for tensor in given), 0)
        return result


def tensors(*found):
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
