template <class T>
void say(T) {
  static_assert(sizeof(T) != sizeof(int), "a number is not a sentence");
}

void use() {
  say(1);
}
