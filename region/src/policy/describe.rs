//! How a policy reads in words, for `config check`.
