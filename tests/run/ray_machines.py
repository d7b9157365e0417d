"""A Ray cluster of two machines on this one, in a process of its own: says where it is, and ends with its input."""

import sys

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    machines.add_node(num_cpus=1)
    print("ray is at", machines.address, flush=True)
    sys.stdin.read()
    machines.shutdown()
