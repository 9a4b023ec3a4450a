//! Element types of tensors, named as safetensors names them.

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident = $name:literal, $size:literal, $word:literal, $doc:literal;)*) => {
        /// An element type. Names are those of safetensors; bytes are little-endian.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// Every element type, in wire order.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant,)*];

            /// Bytes of one element.
            pub const fn size(self) -> u64 { match self { $(Dtype::$variant => $size,)* } }

            /// The safetensors name, such as `BF16`.
            pub const fn name(self) -> &'static str { match self { $(Dtype::$variant => $name,)* } }

            /// PyTorch's name, such as `bfloat16`, for a person.
            pub const fn word(self) -> &'static str { match self { $(Dtype::$variant => $word,)* } }

            /// The element type of a safetensors name, or `None`.
            pub fn parse(name: &str) -> Option<Dtype> { match name { $($name => Some(Dtype::$variant),)* _ => None } }
        }
    };
}

dtypes! {
    F64 = "F64", 8, "float64", "64-bit IEEE float";
    F32 = "F32", 4, "float32", "32-bit IEEE float";
    F16 = "F16", 2, "float16", "16-bit IEEE float";
    BF16 = "BF16", 2, "bfloat16", "bfloat16";
    F8E4M3 = "F8_E4M3", 1, "float8_e4m3fn", "8-bit float, 4 exponent bits, finite variant (no infinity)";
    F8E5M2 = "F8_E5M2", 1, "float8_e5m2", "8-bit float, 5 exponent bits";
    I64 = "I64", 8, "int64", "signed 64-bit";
    I32 = "I32", 4, "int32", "signed 32-bit";
    I16 = "I16", 2, "int16", "signed 16-bit";
    I8 = "I8", 1, "int8", "signed 8-bit";
    U64 = "U64", 8, "uint64", "unsigned 64-bit";
    U32 = "U32", 4, "uint32", "unsigned 32-bit";
    U16 = "U16", 2, "uint16", "unsigned 16-bit";
    U8 = "U8", 1, "uint8", "unsigned 8-bit";
    Bool = "BOOL", 1, "bool", "boolean, one byte, 0 or 1";
}

impl Dtype {
    /// Whether the type is a float. The mean of a float tensor is the weighted mean; of all other tensors it
    /// is the maximum.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8E4M3 | Dtype::F8E5M2)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
