"""Prints what each class of a node may send and sends. With a name and a weight it sets the weight first.

WEIR_URL=http://127.0.0.1:9798 WEIR_TOKEN=... python shares.py [NAME WEIGHT]
"""

import os
import sys

import weir_client
from weir_client.models import PolicyChange, SetPolicies


def main() -> None:
    configuration = weir_client.Configuration(host=os.environ["WEIR_URL"], access_token=os.environ["WEIR_TOKEN"])
    # The file of a certificate authority, for a node with TLS.
    configuration.ssl_ca_cert = os.environ.get("WEIR_CA_FILE")
    with weir_client.ApiClient(configuration) as client:
        api = weir_client.DefaultApi(client)
        if len(sys.argv) == 3:
            change = PolicyChange(name=sys.argv[1], weight=int(sys.argv[2]))
            api.patch_policies(SetPolicies(changes=[change]))
        for one in api.get_classes():
            state = "enforced" if one.enforced else one.not_enforced_because
            print(f"{one.name:20} weight {one.policy.weight:3} {one.allocation / 1e6:8.1f} Mbit/s allowed, "
                  f"{one.rate / 1e6:8.1f} sent: {state}")


try:
    main()
except weir_client.ApiException as refused:
    # A refusal is JSON with a code and a message.
    sys.exit(f"{refused.status}: {refused.body}")
