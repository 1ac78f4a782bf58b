//! Conversions of integers that say what becomes of a number that does not fit.
//!
//! A number that does not fit must not become another one unnoticed, which `try_from(..).unwrap_or(..)` would allow.
//! There are four cases, each with a form of its own:
//!
//! * The conversion loses nothing: `u64::from`, and [`to_usize`] for lengths in memory.
//! * The number comes from outside (a file, a message, an argument): `try_from`, whose error becomes an
//!   [`Error`](crate::Error) or `None`.
//! * The code before has seen to it that the number fits: [`exact`], with the reason. A number that does not fit anyway
//!   shows a fault of this program, and the thread panics rather than go on with a wrong one.
//! * The nearest number that fits is as good: [`saturating`], for times, counters and limits.
//!
//! No conversion that succeeds allocates memory.

/// A primitive integer type, from `u8` to `i128` and the pointer-sized ones; the bound of [`saturating`].
pub trait Integer: Copy {
    /// The smallest number of the type.
    const MIN: Self;
    /// The largest number of the type.
    const MAX: Self;

    /// `true` if the number is less than 0.
    fn is_negative(self) -> bool;
}

macro_rules! integers {
    ($($type:ident)*) => {
        $(impl Integer for $type {
            const MIN: Self = $type::MIN;
            const MAX: Self = $type::MAX;

            #[inline]
            fn is_negative(self) -> bool {
                self.cmp(&0).is_lt()
            }
        })*
    };
}

integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

const _: () = assert!(usize::BITS == u64::BITS, "lengths are converted as if memory had 64-bit addresses");

/// Converts a length or an offset in memory to `usize`. The conversion is lossless, because headstart is
/// built for 64-bit machines only.
#[must_use]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both have 64 bits, as is asserted above")]
pub const fn to_usize(number: u64) -> usize {
    number as usize
}

/// Converts `number` to another integer type that is known to be able to hold it; `reason` says in words why.
///
/// ```
/// # use headstart_block::exact;
/// let frame = vec![0_u8; 4096];
/// assert_eq!(exact::<u32>(frame.len(), "a frame has at most 256 KiB"), 4096);
/// ```
///
/// # Panics
/// If the number does not fit: `reason` was wrong then, which is a fault of the caller. So this is not for numbers from
/// outside (a file, a message, an argument): convert those by `try_from`.
#[must_use]
#[inline]
#[track_caller]
pub fn exact<T>(number: impl TryInto<T>, reason: &str) -> T {
    match number.try_into() {
        Ok(number) => number,
        Err(_) => does_not_fit(reason),
    }
}

#[cold]
#[track_caller]
#[expect(clippy::panic, reason = "a number that cannot be is a fault of the program, and must not be used")]
fn does_not_fit(reason: &str) -> ! {
    panic!("a number does not fit, although {reason}")
}

/// Converts `number` to another integer type; a number outside that type's range becomes its nearest limit.
///
/// ```
/// # use headstart_block::saturating;
/// # use std::time::Duration;
/// assert_eq!(saturating::<u64>(Duration::MAX.as_micros()), u64::MAX);
/// assert_eq!(saturating::<u32>(-7_i64), 0);
/// ```
#[must_use]
#[inline]
pub fn saturating<T: Integer>(number: impl Integer + TryInto<T>) -> T {
    number.try_into().unwrap_or(if number.is_negative() { T::MIN } else { T::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_fit_stay_what_they_are() {
        assert_eq!((saturating::<i8>(-128_i64), exact::<i8>(-128_i64, "it is small")), (-128, -128));
        assert_eq!(
            (saturating::<u16>(65_535_u128), exact::<u16>(65_535_usize, "it is small")),
            (65_535, 65_535)
        );
        assert_eq!(to_usize(u64::MAX), usize::MAX);
    }

    #[test]
    fn the_nearest_number_is_taken_for_one_that_does_not_fit() {
        assert_eq!((saturating::<u64>(u128::MAX), saturating::<u64>(i64::MIN)), (u64::MAX, 0));
        assert_eq!((saturating::<i8>(200_u8), saturating::<i8>(-200_i16)), (i8::MAX, i8::MIN));
        assert_eq!(
            (saturating::<u32>(1_usize << 40), saturating::<usize>(u128::MAX)),
            (u32::MAX, usize::MAX)
        );
    }

    #[test]
    #[should_panic(expected = "a number does not fit, although a frame has at most 256 KiB")]
    fn a_broken_reason_is_named() {
        let _: u32 = exact(1_u64 << 40, "a frame has at most 256 KiB");
    }
}
