//! From a live module to an image that the verifier accepts.

use twin_rewrite::module::Module;
use twin_rewrite::options::{Mode, Options};
use twin_rewrite::rewrite::{rewrite_judged, Output};
use twin_verify::{list, Policy, Rule};

/// What the verifier demands of an image made with `options`.
#[must_use]
pub fn policy(options: &Options) -> Policy {
    let mirror = options.mode == Mode::Mirror;
    Policy {
        mode: if mirror { twin_abi::image::Mode::Mirror } else { twin_abi::image::Mode::Stlb },
        mask_bits: if mirror { options.mask_bits } else { 0 },
        counted: options.counted,
        bmi: options.bmi,
    }
}

/// Rewrites a module. What the verifier does not accept is left to the domain.
///
/// # Errors
/// If the module is not as it has to be, in words.
pub fn make(module: &Module, options: &Options) -> Result<Output, String> {
    let policy = policy(options);
    rewrite_judged(module, options, &mut |image| {
        let mut refused = Vec::new();
        list(image, &policy, &mut |refusal| {
            // A rule about the file concerns no one function.
            let offset = if refusal.rule < Rule::D1 { u32::MAX } else { refusal.offset };
            refused.push((offset, format!("the verifier: {refusal}")));
            true
        });
        refused
    })
}
