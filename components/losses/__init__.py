"""Built-in losses, one per file; each file registers its class.

Formulas use these symbols: l, l_old and l_ref are the log-probs of a label under the policy, the policy
before the update and the reference policy, in nats; rho = exp(l - l_old); A is the advantage; m is
loss_mask; mean_i is the mean over the loss tokens of row i; sg(x) is x without gradient; sig is the
logistic function. A loss token is a position where loss_mask is true; all other positions are masked.
"""
