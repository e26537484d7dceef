"""Exit 0 when the URL given answers with success: the images carry no curl."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=4) as response:
    sys.exit(0 if response.status == 200 else 1)
