"""AdamW as torch computes it, without torch's compiler.

torch marks an optimizer's methods as not to be compiled, and imports its compiler to do so, which takes a second and 60
MB. Nobody compiles an optimizer here, so the methods are taken without that wrapper.
"""

from inspect import unwrap

import torch


class AdamW(torch.optim.AdamW):
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
