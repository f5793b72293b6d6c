"""Tiny models under the names of Depth Anything 3 and Pi3, with the layout and the calls of those, for one method."""

import torch
from torch import nn

from mmaccel.vlm.multi_view_example import Attention, ViewBlock

WIDTH, HEADS, PATCH, REGISTERS = 32, 2, 4, 5


class Backbone(nn.Module):
    """That of Depth Anything 3: from `start` on every second block attends over all views; if -1, none."""

    def __init__(self, start):
        super().__init__()
        self.pretrained = nn.Module()
        self.pretrained.alt_start, self.pretrained.patch_size = start, PATCH
        self.pretrained.num_register_tokens = 0
        self.pretrained.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pretrained.embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.pretrained.blocks = nn.ModuleList(ViewBlock(WIDTH, HEADS) for _ in range(6))

    def forward(self, x):
        batch, views = x.shape[:2]
        x = self.pretrained.embed(x.flatten(0, 1)).flatten(2).mT
        x = torch.cat([self.pretrained.cls_token.expand(len(x), -1, -1), x], 1)
        for i, block in enumerate(self.pretrained.blocks):
            over_all = i >= self.pretrained.alt_start != -1 and i % 2
            x = block(x.unflatten(0, (batch, views)).flatten(1, 2)).view_as(x) if over_all else block(x)
        return x[:, 1:].unflatten(0, (batch, views))


class DepthAnything3Net(nn.Module):
    def __init__(self, start=2):
        super().__init__()
        self.backbone, self.head = Backbone(start), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return {"depth": self.head(self.backbone(x))}


class NestedDepthAnything3Net(nn.Module):
    """Depth of several views, and of each alone."""

    def __init__(self):
        super().__init__()
        self.da3_metric, self.da3 = DepthAnything3Net(-1), DepthAnything3Net()

    def forward(self, x):
        return {"depth": self.da3(x)["depth"] * self.da3_metric(x)["depth"].mean()}


class DepthAnything3(nn.Module):
    """The class that people load: `inference` takes pictures and calls `forward`, and that the network."""

    def __init__(self, network):
        super().__init__()
        self.model = network

    def inference(self, image):
        return self.forward(torch.stack(image)[None])["depth"]

    def forward(self, image):
        return self.model(image)


class Pi3Attention(Attention):
    def forward(self, x, attn_bias=None, xpos=None):
        return super().forward(x, xpos)


class Pi3Block(ViewBlock):
    def __init__(self):
        super().__init__(WIDTH, HEADS)
        self.attn = Pi3Attention(WIDTH, HEADS)

    def forward(self, x, xpos):
        x = x + self.attn(self.norm1(x), xpos=xpos)
        return x + self.mlp(self.norm2(x))


class Pi3(nn.Module):
    """Its decoder's blocks attend within a view and over all views by turns, and it is called with `imgs`."""

    def __init__(self):
        super().__init__()
        self.patch_size, self.patch_start_idx = PATCH, REGISTERS
        self.encoder = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.register_token = nn.Parameter(torch.randn(1, REGISTERS, WIDTH))
        self.decoder = nn.ModuleList(Pi3Block() for _ in range(4))

    def forward(self, imgs):
        hidden = self.encoder(imgs.flatten(0, 1)).flatten(2).mT
        hidden = torch.cat([self.register_token.expand(len(hidden), -1, -1), hidden], 1)
        places = torch.cartesian_prod(*(torch.arange(1, 1 + side // PATCH) for side in imgs.shape[-2:]))
        places = torch.cat([places.new_zeros(REGISTERS, 2), places]).expand(len(hidden), -1, -1)
        for i, block in enumerate(self.decoder):
            batch = len(imgs) if i % 2 else len(hidden)
            hidden = block(hidden.reshape(batch, -1, WIDTH), places.reshape(batch, -1, 2)).view_as(hidden)
        return {"points": hidden[:, REGISTERS:].unflatten(0, imgs.shape[:2])}


class Pi3X(Pi3):
    """It takes more than pictures."""

    def forward(self, imgs, poses=None):
        return super().forward(imgs)
