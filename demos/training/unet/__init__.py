"""How `tiny-unet`, the small text-to-picture model of a UNet, is trained."""
