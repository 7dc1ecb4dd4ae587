void use() {}
