"""The region of AWS that the environment names.

boto3 reads `AWS_DEFAULT_REGION` alone, and takes it as it is when it is empty. Other tools of AWS read
`AWS_REGION`, so both are read here.
"""

import os

import botocore.session


def region_of(session: botocore.session.Session) -> str | None:
    """`AWS_DEFAULT_REGION`, else `AWS_REGION`, else what the profile says; an empty one is none.

    Raises `ProfileNotFound` for an `AWS_PROFILE` that is in no file.
    """
    named = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")
    return named or session.get_scoped_config().get("region") or None
