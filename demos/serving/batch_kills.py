"""Kill a batch of pictures three times, let it end, and count what is there.

    python -m mmaccel.demos.serving.batch_kills --items 500 --output docs/benchmarks/long/batch_kills

First a process of Ray that draws is killed, and the run goes on. Then the run itself is killed, with all that it
started. Then the disk gets full: it is a small one in memory, so that this runs as root, on Linux. Then a run in one
process is killed. The last run ends the work. Fifty of the pictures are drawn once more and compared. At last the time
of an item is set beside that in a plain loop over the same prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image
from tqdm import tqdm

import mmaccel
from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.files.output import replacing
from mmaccel.image import pictures
from mmaccel.image.generation import ImageSettings, load

MODEL = "tiny-janus"
COST = 60  # pictures whose time is measured
DISK, ROOM = 2**30, 300 * 2**10  # bytes of the disk, and what is left of it when it gets full
COMMAND = "from mmaccel.cli.main import main; raise SystemExit(main())"
HEADINGS = ("run", "ended", "pictures after it", "s")


class PictureFolder:
    """One folder of pictures, and the runs that write to it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.list, self.output, self.runs = folder / "prompts.jsonl", folder / "pictures", list[dict[str, Any]]()
        self.prompts = list(zoo.prompts(MODEL, min(count, 200), seed=9))
        rows = [{"prompt": self.prompts[i % len(self.prompts)], "seed": i} for i in range(count)]
        self.list.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.rows, self.count = rows, count

    def started(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", COMMAND, "batch", "image", str(self.list), "-o", str(self.output), *words]
        given = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "text": True}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given)

    def there(self) -> int:
        return len(list(self.output.glob("*.png")))

    def wait_for(self, most: int, process: subprocess.Popen[str]) -> None:
        while self.there() < most and process.poll() is None:
            time.sleep(0.05)

    def ended(self, label: str, process: subprocess.Popen[str], began: float) -> str:
        said, errors = process.communicate()
        seconds = time.perf_counter() - began
        row = {"run": label, "code": process.returncode, "pictures": self.there(), "seconds": seconds}
        self.runs.append({**row, "last_line": (errors.strip().splitlines() or [""])[-1][:200]})
        tqdm.write(str(self.runs[-1]))
        return said


def kills(batch: PictureFolder) -> str:
    """Three kills and the end; returns what the last run says."""
    began = time.perf_counter()
    process = batch.started("--ray")
    batch.wait_for(batch.count // 5, process)
    started = psutil.Process(process.pid).children(recursive=True)
    drawing = [one for one in started if "ray::Worker" in " ".join(one.cmdline())]
    drawing[0].kill()
    at = batch.there()
    batch.wait_for(2 * batch.count // 5, process)
    process.kill()
    batch.ended(f"--ray; a worker killed at {at} pictures, then the run itself", process, began)
    began = time.perf_counter()
    _resize(batch.list.parent, shutil.disk_usage(batch.list.parent).used + ROOM)
    batch.ended("the disk is full", batch.started(), began)
    _resize(batch.list.parent, DISK)
    began = time.perf_counter()
    process = batch.started()
    batch.wait_for(3 * batch.count // 5, process)
    process.kill()
    batch.ended("in one process, killed", process, began)
    began = time.perf_counter()
    return batch.ended("--ray, to the end", batch.started("--ray"), began)


def _resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def wrong(batch: PictureFolder) -> int:
    """Pictures that are not those of a plain loop; a share of them, since each is drawn once more."""
    painter, found = load(MODEL), 0
    chosen = range(0, batch.count, max(1, batch.count // 50))
    with mmaccel.accelerate(painter.target, preset="exact") as fast:
        for i in tqdm(chosen, desc="held against a loop"):
            drawn = painter.paint(fast, [batch.rows[i]["prompt"]], ImageSettings(seed=i))
            with tempfile.TemporaryDirectory() as folder:
                pictures.save(drawn, Path(folder) / "a.png")
                same = np.array_equal(_pixels(Path(folder) / "a.png"), _pixels(batch.output / f"{i + 1:06}.png"))
            found += not same
    return found


def _pixels(path: Path) -> Any:
    with Image.open(path) as picture:
        return np.asarray(picture)


def cost(folder: Path, count: int) -> dict[str, float]:
    """Seconds of the processor for an item, in a loop and in `mmaccel batch`, with a loaded model and by turns."""
    from mmaccel.batch import run
    from mmaccel.batch.folder import OutputFolder
    from mmaccel.batch.items import read_items
    from mmaccel.batch.work import Work
    from mmaccel.cli.batch import ELSEWHERE
    from mmaccel.cli.main import build_parser

    batch = PictureFolder(folder, count)
    arguments = build_parser().parse_args(["batch", "image", str(batch.list), "-o", str(batch.output)])
    usual = argparse.Namespace(**{name: value for name, value in vars(arguments).items() if name not in ELSEWHERE})
    command = arguments.run.args[0]
    painter, spent = load(MODEL), {"loop": 0.0, "batch": 0.0}
    with mmaccel.accelerate(painter.target, preset="exact") as fast:
        work = Work(command.batching, painter, fast, usual)
        items = read_items(batch.list, command.batching)
        painter.paint(fast, [batch.rows[0]["prompt"]], ImageSettings())
        for first in range(0, count, 10):
            began = time.process_time()
            for i in range(first, first + 10):
                drawn = painter.paint(fast, [batch.rows[i]["prompt"]], ImageSettings(seed=i))
                with replacing(folder / f"{i}.png") as temporary:
                    pictures.save(drawn, temporary)
            spent["loop"] += time.process_time() - began
            began = time.process_time()
            with OutputFolder(batch.output, {}, ".png") as output:
                run.run(items[first : first + 10], output, command, usual, lambda tasks: map(work.make, tasks))
            spent["batch"] += time.process_time() - began
    return {name: seconds / count for name, seconds in spent.items()}


def measure(items: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="batch-kills-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        batch = PictureFolder(folder, items)
        said = kills(batch)
        keys = [json.loads(line)["key"] for line in (batch.output / ".mmaccel/records.jsonl").read_text().splitlines()]
        found = {"items": items, "pictures": batch.there(), "records": len(keys), "keys": len(set(keys))}
        found |= {"wrong": wrong(batch), "said": said.splitlines(), "runs": batch.runs}
        (folder / "cost").mkdir()
        return {**results.result([]), **found, "seconds_an_item": cost(folder / "cost", COST)}
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def page(result: dict[str, Any]) -> str:
    lines = [(run["run"], str(run["code"]), str(run["pictures"]), f"{run['seconds']:.0f}") for run in result["runs"]]
    loop, batch = result["seconds_an_item"]["loop"], result["seconds_an_item"]["batch"]
    intro = (
        f"`mmaccel batch image` with {MODEL} and {result['items']} prompts, by `python -m"
        f" mmaccel.demos.serving.batch_kills`: **{result['pictures']} pictures** of {result['keys']} keys with"
        f" {result['records']} records at the end; {result['wrong']} of the 50 that were drawn again differed. An item"
        f" takes {batch:.3f} s of the processor, {batch / loop - 1:+.1%} of the {loop:.3f} s in a plain loop that"
        f" writes the same files (by turns, {COST} pictures each). All is in [batch_kills.json](batch_kills.json)."
    )
    return pages.page(result, "A batch that is killed", intro, {"Its runs": pages.markdown(HEADINGS, lines)})


if __name__ == "__main__":
    pages.run(__doc__, page, measure, threads=False, items={"type": int, "default": 500})
