import unittest

import mount_memory


class Extrapolation(unittest.TestCase):
    def test_memory_that_grows_with_the_files_is_extrapolated_exactly(self):
        def of(files):
            return (8 << 20) + 400 * files

        self.assertEqual(mount_memory.extrapolated(of(6250), of(12500), 8), of(100_000))
