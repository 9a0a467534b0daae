//! What can be said of code without decoding it.

/// Bytes that [`ends_with_call`] looks at, at most.
pub const CALL_MAX: usize = 7;

/// Does `code` end with what looks like a CALL, so that what follows it may be a return address? Direct (E8), or by a
/// register or memory (FF /2).
pub fn ends_with_call(code: &[u8]) -> bool {
    let tail = |bytes: usize| code.len().checked_sub(bytes).map(|at| &code[at..]);
    let indirect = |bytes| matches!(tail(bytes), Some([0xff, modrm, ..]) if modrm >> 3 & 7 == 2);
    matches!(tail(5), Some([0xe8, ..])) || [2, 3, 4, 6, 7].into_iter().any(indirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_recognised_by_their_ends() {
        for call in [
            &[0x90, 0xe8, 1, 2, 3, 4][..],
            &[0xff, 0xd0],                   // call rax
            &[0x41, 0xff, 0xd2],             // call r10
            &[0xff, 0x50, 0x18],             // call [rax + 0x18]
            &[0xff, 0x54, 0x24, 0x10],       // call [rsp + 0x10]
            &[0xff, 0x15, 1, 2, 3, 4],       // call [rip + x]
            &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call [rsp + x]
        ] {
            assert!(ends_with_call(call), "{call:x?}");
        }
        for other in [&[][..], &[0xe8], &[0x90; 7], &[0xff, 0xe0], &[0xe9, 1, 2, 3, 4], &[0xff, 0x25, 1, 2, 3, 4]] {
            assert!(!ends_with_call(other), "{other:x?}");
        }
    }
}
