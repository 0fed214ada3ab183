"""bench/mount.py: the comparison with a peer as its users run it."""

import argparse
import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import mount
from peers import curvine, juicefs, mountpoint


class Beside(unittest.TestCase):
    def test_rows_say_how_a_peer_was_read_and_absent_ones_why_not(self):
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as patches:
            for peer in (juicefs, curvine, mountpoint):
                patches.enter_context(mock.patch.object(peer, "missing", lambda: "not installed"))
            patches.enter_context(mock.patch.object(mount, "FILE_BYTES", 16 << 20))
            path, peer = Path(name, "data"), Path(name, "peer")
            path.write_bytes(bytes(16 << 20))
            peer.mkdir()
            options = argparse.Namespace(runs=1, beside=[mount.named_directory(f"mount-s3={peer}")])
            printed = patches.enter_context(contextlib.redirect_stdout(io.StringIO()))
            mount.peer_pairs(options, path)
            self.assertEqual([*peer.iterdir()], [])
        absent, rows = printed.getvalue().splitlines()[:3], printed.getvalue().splitlines()[3:]
        self.assertTrue(all("not installed" in line for line in absent), absent)
        self.assertEqual([row.split("|")[1].strip() for row in rows],
                         [f"{when}, {what}, to mount-s3 as used" for what in mount.READS for when in ("first read", "read again")])

    def test_a_directory_that_is_not_there_is_refused(self):
        for text in ("mount-s3", "=/tmp", "s3=/nowhere"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "NAME=DIRECTORY"):
                mount.named_directory(text)
