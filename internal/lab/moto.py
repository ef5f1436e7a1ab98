# A server of the Glue API that compares VersionId, as AWS does and moto by itself does not.
import sys
import threading

from moto.glue import responses
from moto.glue.exceptions import GlueClientError
from moto.server import main

lock = threading.Lock()
update_table = responses.GlueResponse.update_table


class ConcurrentModificationException(GlueClientError):
    def __init__(self):
        super().__init__("ConcurrentModificationException", "Update table failed due to concurrent modifications.")


def strict(self):
    version = self.parameters.get("VersionId")
    with lock:
        table = self.glue_backend.get_table(self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"])
        if version is not None and str(table._current_version) != str(version):
            raise ConcurrentModificationException()
        return update_table(self)


responses.GlueResponse.update_table = strict
sys.exit(main(sys.argv[1:]))
