"""fsspec's own suite for file systems: copy, get and put."""

import fsspec.tests.abstract as abstract
import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix

from forebay.fs import ForebayFileSystem


class ForebayFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, agent):
        return ForebayFileSystem(socket=agent.socket, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, directory):
        return str(directory)

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        return make_path_posix(str(tmp_path))


class TestCopy(abstract.AbstractCopyTests, ForebayFixtures):
    pass


class TestGet(abstract.AbstractGetTests, ForebayFixtures):
    pass


class TestPut(abstract.AbstractPutTests, ForebayFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, ForebayFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, ForebayFixtures):
    pass
