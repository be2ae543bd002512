
pub mod codec;
pub mod frame;
pub mod identity;
