"""Who may talk to the demo: only pages that it served itself, at an address that is its own."""

from __future__ import annotations

from mmaccel.serve import door


class DemoDoor(door.Door):
    """Refuses what does not come from a page of the demo, and what of Gradio no tab asks for."""

    called = "demo"
    # Gradio's own work on uploads: it runs FFmpeg, or writes files, without the limits of this app.
    closed = ("/process_recording", "/vibe-", "/undo-vibe-", "/proxy=", "/component_server", "/stream/")
