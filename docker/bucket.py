"""Make the bucket given, unless it is there; ends with an error while the S3 server is not up."""

import sys

import s3fs

store = s3fs.S3FileSystem()
if not store.exists(sys.argv[1]):
    store.mkdir(sys.argv[1])
