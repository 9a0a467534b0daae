//! The twin contract shared by verifier, rewriter and hypervisor: address map, reserved registers, imports, manifest. No logic.
