//! Comparing short runs of bytes, such as the names in a publish.

/// Whether two runs of bytes are the same. To be used in place of `==` wherever every message is compared and either side
/// may be an empty `Vec`.
///
/// Such a `Vec` points to an address at which nothing is mapped. The C library compares its no bytes with a masked load from
/// there, which the processor must find out not to need: 210 ns in place of 3 ns were measured, for every publish to the
/// default exchange twice.
#[inline]
#[must_use]
pub fn same_bytes(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_only_if_all_of_them_are() {
        assert!(same_bytes(&[], &Vec::new()));
        assert!(same_bytes(b"mail", b"mail"));
        assert!(!same_bytes(b"mail", b""));
        assert!(!same_bytes(b"mail", b"mai"));
        assert!(!same_bytes(b"mail", b"main"));
    }
}
