"""Reference solutions of the generated programming problems.

The source text of each function is part of a gold answer, so it uses only builtins. Its first argument is the input;
the others are the parameters of the problem. An edit in this file changes generated data: increase `Code.version`, too.
"""


def count_multiples(numbers: list[int], divisor: int) -> int:
    return sum(n % divisor == 0 for n in numbers)


def sum_above(numbers: list[int], bound: int) -> int:
    return sum(n for n in numbers if n > bound)


def keep_remainder(numbers: list[int], divisor: int, remainder: int) -> list[int]:
    return [n for n in numbers if n % divisor == remainder]


def every_kth(numbers: list[int], k: int) -> list[int]:
    return numbers[k - 1 :: k]


def rotate_left(numbers: list[int], steps: int) -> list[int]:
    cut = steps % len(numbers) if numbers else 0
    return numbers[cut:] + numbers[:cut]


def clip_all(numbers: list[int], low: int, high: int) -> list[int]:
    return [min(max(n, low), high) for n in numbers]


def window_sums(numbers: list[int], width: int) -> list[int]:
    return [sum(numbers[i : i + width]) for i in range(len(numbers) - width + 1)]


def count_pairs(numbers: list[int], total: int) -> int:
    pairs = ((i, j) for i in range(len(numbers)) for j in range(i))
    return sum(numbers[i] + numbers[j] == total for i, j in pairs)


def kth_largest(numbers: list[int], k: int) -> int:
    distinct = sorted(set(numbers), reverse=True)
    return distinct[k - 1] if len(distinct) >= k else -1


def longest_run_above(numbers: list[int], bound: int) -> int:
    best = run = 0
    for n in numbers:
        run = run + 1 if n > bound else 0
        best = max(best, run)
    return best


def first_index_above(numbers: list[int], bound: int) -> int:
    return next((i for i, n in enumerate(numbers) if n > bound), -1)


def weighted_sum(numbers: list[int], factor: int) -> int:
    return sum(n * factor * (i + 1) for i, n in enumerate(numbers))


def differences(numbers: list[int], lag: int) -> list[int]:
    return [after - before for before, after in zip(numbers, numbers[lag:], strict=False)]


def chunk_maxima(numbers: list[int], size: int) -> list[int]:
    return [max(numbers[i : i + size]) for i in range(0, len(numbers), size)]


def without_value(numbers: list[int], value: int) -> list[int]:
    return [n for n in numbers if n != value]


def running_total_reaches(numbers: list[int], goal: int) -> int:
    total = 0
    for count, n in enumerate(numbers, 1):
        total += n
        if total >= goal:
            return count
    return 0


def alternating_power_sum(numbers: list[int], power: int) -> int:
    return sum((-1) ** i * n**power for i, n in enumerate(numbers))


def closest_to(numbers: list[int], target: int) -> int:
    return min(numbers, key=lambda n: (abs(n - target), n)) if numbers else 0


def digits_in_base(number: int, base: int) -> list[int]:
    digits = []
    while number:
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits[::-1] or [0]


def sum_of_multiples_below(number: int, first: int, second: int) -> int:
    return sum(n for n in range(number) if n % first == 0 or n % second == 0)


def power_remainder(number: int, exponent: int, modulus: int) -> int:
    return pow(number, exponent, modulus)


def steps_to_one(number: int, factor: int) -> int:
    steps = 0
    while number > 1:
        number = number // factor if number % factor == 0 else number - 1
        steps += 1
    return steps


def count_divisors_above(number: int, bound: int) -> int:
    return sum(number % n == 0 for n in range(bound + 1, number + 1))


def linear_recurrence(number: int, start: int, step: int) -> int:
    before, value = 0, start
    for _ in range(number):
        before, value = value, value + step * before
    return value


def is_multiple_of_digit_sum(number: int, extra: int) -> bool:
    return number % (sum(int(digit) for digit in str(number)) + extra) == 0


def shift_letters(text: str, steps: int) -> str:
    a, z = ord("a"), ord("z")
    return "".join(chr((ord(c) - a + steps) % (z - a + 1) + a) if "a" <= c <= "z" else c for c in text)


def count_letter(text: str, letter: str) -> int:
    return text.count(letter)


def long_words(text: str, length: int) -> str:
    return " ".join(word for word in text.split() if len(word) >= length)


def reverse_long_words(text: str, length: int) -> str:
    return " ".join(word[::-1] if len(word) >= length else word for word in text.split())


def drop_letter(text: str, letter: str) -> str:
    return text.replace(letter, "")


def every_kth_letter(text: str, k: int) -> str:
    return text[k - 1 :: k]


def words_with_letter(text: str, letter: str) -> int:
    return sum(letter in word for word in text.split())


def repeat_letters(text: str, times: int) -> str:
    return "".join(character * times for character in text)


def has_word_of_length(text: str, length: int) -> bool:
    return any(len(word) == length for word in text.split())
