"""Code that runs under the interpreter of BFCL, without egpo."""
