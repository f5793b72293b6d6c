"""mmaccel in ComfyUI: `python -m mmaccel.demos.comfyui FOLDER` installs the nodes Accelerate, Report and Compare."""
