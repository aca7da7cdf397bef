//! Whole numbers in as few bytes as they need: seven bits a byte, lowest first, the top bit set on all but the
//! last. Small numbers are common in what Nexo stores, and the disk is what it waits for.

/// Most bytes that one number takes.
pub const BYTES_MAX: usize = 10;

/// Appends `value` to `out`.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`put`] takes for `value`.
#[inline]
#[must_use]
pub const fn len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Takes a number off the head of `bytes`. `None` if they end too soon or hold no number of 64 bits.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(BYTES_MAX).enumerate() {
        let part = u64::from(byte & 0x7f);
        if i == BYTES_MAX - 1 && part > 1 {
            return None;
        }
        value |= part << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

/// Takes one byte off the head of `bytes`.
#[inline]
pub fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(first)
}

/// Signed numbers near zero become small unsigned ones.
#[inline]
#[must_use]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The opposite of [`zigzag`].
#[inline]
#[must_use]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_comes_back_and_len_is_true() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put(&mut out, value);
                assert_eq!(out.len(), len(value), "{value}");
                let mut rest = out.as_slice();
                assert_eq!(take(&mut rest), Some(value));
                assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn cut_and_oversized_numbers_are_refused() {
        assert_eq!(take(&mut [0x80u8, 0x80].as_slice()), None);
        assert_eq!(take(&mut [0xffu8; 10].as_slice()), None);
        assert_eq!(take(&mut [0x80u8; 11].as_slice()), None);
        assert_eq!(take(&mut [].as_slice()), None);
    }

    #[test]
    fn signed_numbers_near_zero_become_small() {
        for value in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!([zigzag(0), zigzag(-1), zigzag(1), zigzag(-64)], [0, 1, 2, 127]);
    }
}
