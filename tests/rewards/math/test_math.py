"""The judge `math`: right answers in odd clothes are accepted, near misses are not, and nothing large is computed."""

import json
import time
from pathlib import Path

import pytest

from freerun.core import RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.config import RewardConfig
from freerun.rewards.math import math
from freerun.rewards.service import JudgeService

RIGHT: dict[str, list[tuple[str, str]]] = {
    "where the answer is": [
        ("72", "72"),
        ("10 cubic feet", "10 cu. ft"),
        ("72", "The answer is 72."),
        ("72", "the final answer is: 72"),
        ("72", "**Answer:** 72"),
        ("72", "Final Answer: The final answer is $72$. I hope it is correct."),
        ("72", r"so \boxed{72}"),
        ("72", r"first \boxed{71}, but no: \boxed{72}"),
        ("72", r"\boxed{72}, which is 3 more than 69."),
        ("72", r"\boxed 72"),
        ("72", r"\fbox{72}"),
        ("72", r"$\boxed{72}$ and then it was cut off \boxed{7"),
        ("72", "48/2 = 24, 48 + 24 = 72\n#### 72"),
        ("72", "48 + 24 = <<48+24=72>>72 clips.\n#### 72 clips"),
        ("72", "She sold 48 + 24 = 72 clips."),
        ("72", "It follows that $n = 72$."),
        ("72", r"It follows that \(n = 72\)"),
        ("72", "\\[\nn = 72\n\\]"),
        ("72", "48 in April, 24 in May: 72 clips altogether."),
        ("72", "The answer is 72\n\nLet me know if you need more."),
        ("18", "She makes $18 every day."),
        ("18", "She has $5 and earns $13, so $18"),
        ("He has 1 + 1 = 2 apples\n#### 1,234", r"\boxed{1234}"),
        (r"Hence \boxed{5}.", r"\boxed{5}"),
        ("5", "<think>maybe \\boxed{3}</think>\nThe answer is 5."),
        ("5", r"<think>I should write \boxed{} around.</think> **5**"),
        ("5", r"<think>Use <answer>...</answer></think> \boxed{5}"),
        ("5", "<think>so it is 5</think>"),
        ("5", "\\boxed{5}\n\nThe format asks for \\boxed{}."),
        ("C", r"\boxed{\textbf{(C)}\ 12}"),
        ("C", r"\boxed{(C)\ 12}"),
        ("(C)", "<answer>(C) foo bar</answer>"),
        ("60t", r"\boxed{60 t}"),
        (r"2\pi h", r"\boxed{2h\pi}"),
        (r"2h\pi", r"\boxed{2\pi h}"),
        (r"16\pi", r"\boxed{16\pi \text{ m}}"),
        (r"16\pi \text{ cm}^2", r"\boxed{16\pi}"),
        ("f(t)=20t", r"\boxed{20t}"),
        ("12", r"\boxed{12m}"),
        ("12", r"\boxed{12cm}"),
        (r"12 \text{ cm}", r"\boxed{12cm}"),
        (r"60 \text{ km/h}", r"\boxed{60km/h}"),
        ("5", r"\boxed{AB = 5}"),
        ("60", r"\boxed{\angle ABC = 60}"),
        (r"\frac{\pi}{3}", r"\boxed{\theta = \frac{\pi}{3}}"),
        ("5", r"\boxed{\text{Area} = 5}"),
        ("6", r"\boxed{2+4=6}"),
        ("7", r"\boxed{m+n=7}"),
        *(
            ("5", rf"\boxed{{{left}=5}}")
            for left in ("f(2)", "a=b", r"x_{\text{max}}", "Janet's total", "f^{-1}(2)", "xy")
        ),
        (r"\frac12", r"\boxed{P(\text{red})=\frac12}"),
        ("10", r"\boxed{C(5,2)=10}"),
        ("18", "so it is\n#### 20-2=18 apples"),
        ("18", "so it is\n#### 9 eggs * $2/egg = $18"),
        ("18", "so it is\n#### 20% of 90 = 18"),
        ("18", "so it is\n#### 9x2=18"),
        ("18", "The answer is 5.5*3=16.5+1.5=18"),
        ("3.33", "so it is\n#### 10/3=3.33"),
        ("66.67", r"\boxed{\frac{200}{3}=66.67}"),
        ("2.24", r"\boxed{\sqrt5=2.24}"),
        ("AB=CD=5", r"\boxed{5}"),
        ("2:3", r"\boxed{a:b = 2:3}"),
        (r"2\sqrt{3}", r"\boxed{2\sqrt{3}\text{ units}}"),
        (r"16\pi\text{ square units}", r"\boxed{16\pi}"),
        (r"16\pi", r"\boxed{16\pi \text{ apples}}"),
        (r"\frac12", r"\boxed{50\% \text{ of the apples}}"),
        (r"2\sqrt{3}\text{ m}", r"\boxed{2\sqrt{3}}"),
        ("24", "so it is\n#### 24 hours a day"),
        ("24", r"\boxed{24 \text{ times a week}}"),
        ("24", r"\boxed{24 \text{ quarters}}"),
        ("7", r"\boxed{7 \text{ cm squared}}"),
        ("7", r"\boxed{7 \text{ in a row}}"),
        (r"\frac14", r"\boxed{\frac14 \text{ of a mile}}"),
        ("5 times", r"\boxed{5}"),
        ("60m", r"\boxed{60 \text{ meters}}"),
        ("2.5h", r"\boxed{2.5\text{ hours}}"),
        ("6", r"\boxed{x = 2+4 = 6}"),
        ("x^2-1", r"\boxed{(x+1)(x-1) = x^2-1}"),
        ("y=2x+3", r"\boxed{2x - y + 3 = 0}"),
        ("y=2x+3", r"\boxed{2x+3}"),
        ("x+y=5", r"\boxed{y+x=5}"),
        (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } x>1}"),
        (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \lor x>1}"),
        (r"x<-1 \text{ or } x>1", r"\boxed{(-\infty,-1)\cup(1,\infty)}"),
        ("5", r"\boxed{x = 5}"),
        ("x=5", r"\boxed{5}"),
        ("x=5", r"\boxed{x=5}"),
        ("2", r"\boxed{\text{The answer is } 2}"),
        (r"2\sqrt{3}", r"The answer is $2\sqrt{3}$, as shown above."),
    ],
    "numbers": [
        ("1234", "1,234"),
        ("1,234", r"\boxed{1234}"),
        ("1234567", r"\boxed{1{,}234{,}567}"),
        ("1000", r"\boxed{1,\!000}"),
        ("1000", r"\boxed{1\,000}"),
        ("3.5", r"\boxed{3.50}"),
        ("3", r"\boxed{3.0}"),
        ("0.5", r"\boxed{.5}"),
        ("-5", r"\boxed{-5}"),
        ("-5", r"\boxed{−5}"),
        ("5", r"\boxed{+5}"),
        ("1500000", r"\boxed{1.5 \times 10^6}"),
        ("1500000", "The answer is 1.5 million."),
        ("0.003", r"\boxed{3 \cdot 10^{-3}}"),
        ("1500", "1.5e3"),
        ("12345678901234567890123456789", r"\boxed{12345678901234567890123456789}"),
    ],
    "fractions": [
        ("1/2", r"\boxed{\frac{1}{2}}"),
        ("1/2", r"\boxed{\frac{2}{4}}"),
        (r"\frac{1}{2}", "The answer is 0.5"),
        (r"\frac12", r"\boxed{1/2}"),
        (r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}"),
        (r"\frac{1}{2}", r"\boxed{\tfrac 1 2}"),
        (r"-\frac{3}{4}", r"\boxed{\frac{-3}{4}}"),
        (r"-\frac{3}{4}", r"\boxed{-0.75}"),
        (r"1\frac{1}{2}", r"\boxed{\frac{3}{2}}"),
        ("2.5", "2 1/2 cups"),
        (r"\frac{1}{3}", r"\boxed{0.333333}"),
        (r"\frac{22}{7}", r"\boxed{22/7}"),
        (r"\frac{a}{b}", r"\boxed{a/b}"),
    ],
    "percentages": [
        (r"50\%", r"\boxed{50\%}"),
        (r"50\%", r"\boxed{50}"),
        ("50%", r"\boxed{0.5}"),
        ("50", r"\boxed{50\%}"),
        ("0.5", r"\boxed{50\%}"),
        ("12.5%", "The answer is 12.5 percent."),
        (r"\frac{1}{4}", r"\boxed{25\%}"),
    ],
    "units and money": [
        (r"10\text{ cm}", r"\boxed{10}"),
        ("10", r"\boxed{10\text{ cm}}"),
        ("10 cm", r"\boxed{10 \mathrm{cm}}"),
        ("10 cm", "The answer is 10 centimeters."),
        ("42", "The answer is 42 dollars."),
        ("$42", r"\boxed{\$42}"),
        ("$42", "42 dollars"),
        ("$1,234.50", r"\boxed{1234.5}"),
        ("42", "€42"),
        ("25", r"\boxed{25\text{ cm}^2}"),
        ("25", "an area of 25 m^2"),
        (r"45^\circ", r"\boxed{45}"),
        ("45", r"\boxed{45^{\circ}}"),
        ("45", "45 degrees"),
        ("60 km/h", r"\boxed{60}"),
        ("1 hour", r"\boxed{60\text{ minutes}}"),
        ("2 m", r"\boxed{200\text{ cm}}"),
        ("5", r"\boxed{5 \text{ apples}}"),
    ],
    "surds and powers": [
        (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
        ("sqrt(12)", r"so $2\sqrt3$"),
        (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt{2}}}"),
        (r"\sqrt[3]{16}", r"\boxed{2\sqrt[3]{2}}"),
        (r"1+\sqrt{2}", r"\boxed{\sqrt{2}+1}"),
        ("2^{10}", r"\boxed{1024}"),
        ("2^{2024}-1", r"\boxed{-1+2^{2024}}"),
        ("10!", r"\boxed{3628800}"),
        (r"\binom{10}{3}", r"\boxed{120}"),
        (r"\sqrt{2}", r"\boxed{1.414214}"),
        (r"3\sqrt{2}", "3√2"),
    ],
    "pi, e, logarithms, angles": [
        (r"\pi", r"\boxed{\pi}"),
        (r"2\pi", "2π"),
        (r"\frac{\pi}{2}", r"\boxed{\pi/2}"),
        (r"\pi", r"\boxed{3.141593}"),
        (r"e^2", r"\boxed{e^{2}}"),
        (r"\ln 8", r"\boxed{3\ln 2}"),
        (r"\frac{\sqrt{3}}{2}", r"\boxed{\sin 60^\circ}"),
        (r"\log_2 8", r"\boxed{3}"),
    ],
    "expressions": [
        ("(x+1)^2", r"\boxed{x^2+2x+1}"),
        ("x^2-1", r"\boxed{(x-1)(x+1)}"),
        ("2x+3", r"\boxed{3+2x}"),
        ("y=2x+3", r"\boxed{2x+3}"),
        ("y=2x+3", r"\boxed{y = 3 + 2x}"),
        ("x^2+y^2=25", r"\boxed{y^2+x^2=25}"),
        (r"\frac{x}{2}", r"\boxed{0.5x}"),
        (r"f(x)=x^2", r"\boxed{x^2}"),
        ("3+4i", r"\boxed{4i+3}"),
        (r"x^{100}", r"\boxed{x^{100}}"),
        (r"\frac{1}{x-1}", r"\boxed{\frac{-1}{1-x}}"),
    ],
    "sets and lists": [
        (r"\{1,2,3\}", r"\boxed{\{3, 1, 2\}}"),
        ("{1,2}", r"\boxed{\{2,1\}}"),
        ("1,2", r"\boxed{2, 1}"),
        ("1,2", r"\boxed{1 \text{ and } 2}"),
        ("1,2", r"\boxed{x=1 \text{ or } x=2}"),
        ("1,2", r"\boxed{\{1,2\}}"),
        (r"\{\frac{1}{2}, 2\}", r"\boxed{\{2, 0.5\}}"),
        (r"1\pm\sqrt{2}", r"\boxed{1+\sqrt{2}, 1-\sqrt{2}}"),
        (r"\pm 3", r"\boxed{3, -3}"),
        (r"\emptyset", r"\boxed{\varnothing}"),
        ("1,234,567", r"\boxed{1234567}"),
    ],
    "points and intervals": [
        ("(1,2)", r"\boxed{(1, 2)}"),
        ("(1,2,3)", r"\boxed{\left(1,2,3\right)}"),
        (r"(\frac{1}{2},-3)", r"\boxed{(0.5, -3)}"),
        ("[0,1)", r"\boxed{[0,1)}"),
        ("[0,1)", r"\boxed{\left[0, 1\right)}"),
        ("[0,1]", r"\boxed{0 \le x \le 1}"),
        ("[0,1]", r"\boxed{x \in [0,1]}"),
        (r"(-\infty, 2)", r"\boxed{x < 2}"),
        (r"(-\infty, 2)", r"\boxed{(-\infty,2)}"),
        (r"(-\infty,1)\cup(2,\infty)", r"\boxed{(2,\infty) \cup (-\infty, 1)}"),
        ("x>3", r"\boxed{3<x}"),
    ],
    "matrices": [
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
            r"\boxed{\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}}",
        ),
        (r"\begin{pmatrix}1/2\\0\end{pmatrix}", r"\boxed{\begin{pmatrix} \frac12 \\ 0 \end{pmatrix}}"),
        (r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}", r"\boxed{\begin{pmatrix}1&0\\0&1\\\end{pmatrix}}"),
    ],
    "words": [
        (r"\text{even}", r"\boxed{even}"),
        ("even", r"\boxed{\text{Even}}"),
        (r"\text{(B)}", r"\boxed{B}"),
        ("B", "The answer is (B)."),
        ("Tuesday", "The answer is Tuesday."),
        ("Tuesday", "Tuesday"),
        ("yes", r"\boxed{\text{Yes}}"),
        ("1010_2", r"\boxed{1010_{2}}"),
    ],
    "as models write, and data sets do": [
        (r"\frac{14}{3}", r"\boxed{4\frac{2}{3}}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \frac{\pi}{2})}"),
        ("p - q", r"\boxed{p-q}"),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}"),
        (r"\text{Evelyn}", "The answer is Evelyn, who ran fastest."),
        ("27", r"\boxed{27 \text{ cm}^3}"),
        (r"90^\circ", r"\boxed{90^\circ}"),
        (r"3\sqrt{13}", r"\boxed{3 \sqrt{13}}"),
        ("6 - 5i", r"\boxed{6-5i}"),
        ("6 - 5i", r"\boxed{-5i+6}"),
        ("2000", r"\boxed{\$2,\!000}"),
        (r"x \in [-2,7]", r"\boxed{[-2,7]}"),
        (r"x \in [-2,7]", r"\boxed{-2 \leq x \leq 7}"),
        (r"\frac{3}{56}", r"\boxed{0.05357142857}"),
        (r"5.4 \text{ cents}", r"\boxed{5.4}"),
        (r"\frac 59", r"\boxed{\frac{5}{9}}"),
        (r"(-\infty, -2) \cup (-2,3) \cup (3,\infty)", r"\boxed{(-\infty,-2)\cup(-2,3)\cup(3,\infty)}"),
        (
            r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
            r"\boxed{\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \\ \frac{5}{3} \end{pmatrix}}",
        ),
        ("1,-2", r"\boxed{-2, 1}"),
        (r"\$36", r"\boxed{36 \text{ dollars}}"),
        (r"11\text{ minutes}", r"\boxed{11}"),
        ("x^3 + 3x - 6", r"\boxed{x^3+3x-6}"),
        (r"\sqrt{51}", r"\boxed{\sqrt{51} \approx 7.14}"),
        (
            r"\frac{\sqrt{21}}{14}",
            r"\boxed{\frac{3}{2\sqrt{84}}\cdot\frac{1}{1}\cdot 1 \cdot \frac{2\sqrt{84}\sqrt{21}}{42}}",
        ),
        (r"(5, \infty)", r"\boxed{x > 5}"),
        (r"\text{June 20}", r"\boxed{\text{June 20}}"),
        (r"\text{June 20}", "The answer is June 20."),
        (r"137 \frac{1}{2}", r"\boxed{137.5}"),
        (r"12 + 12 \sqrt{3} + 4 \pi", r"\boxed{4\pi+12+12\sqrt3}"),
        (r"\cot x", r"\boxed{\frac{\cos x}{\sin x}}"),
        ("3, 5, 7", r"\boxed{3,5,7}"),
        ("(1,-16,-4,43)", r"\boxed{(1, -16, -4, 43)}"),
        (r"\pm \sqrt{2}", r"\boxed{\sqrt{2}, -\sqrt{2}}"),
        (r"\pm \sqrt{2}", r"\boxed{\pm\sqrt{2}}"),
        ("2-2p", r"\boxed{2(1-p)}"),
        ("E", r"\boxed{\textbf{(E)}}"),
        (r"\text{(E)}", r"\boxed{E}"),
        ("4210_{5}", r"\boxed{4210_5}"),
        (r"864 \mbox{ inches}^2", r"\boxed{864}"),
        (r"\frac{270}7\text{ degrees}", r"\boxed{\frac{270}{7}}"),
        (".0441", r"\boxed{0.0441}"),
        ("10080", r"\boxed{10{,}080}"),
        ("2^{1/3}", r"\boxed{\sqrt[3]{2}}"),
        (r"\dfrac{9}{7}", r"\boxed{\frac{9}{7} \text{ units}}"),
        (r"\dfrac{9}{7}", r"\boxed{1 \frac{2}{7}}"),
        (r"\frac12", r"The answer is \(\frac{1}{2}\)."),
        (r"\frac12", r"Answer: $\frac{1}{2}$"),
        ("5", "**Answer**: 5"),
        ("5", r"The final answer is $\boxed{5}$"),
        ("5", "Therefore x = 5."),
        ("5", "<think>3?</think><answer>5</answer>"),
        ("5", "<answer> The result is 5. </answer>"),
        ("5", r"\boxed{\mathbf{5}}"),
        ("5", r"\boxed{\displaystyle 5}"),
        ("5", r"\boxed{5}\text{ apples}"),
        (r"\frac12", r"$$\boxed{\frac{1}{2}}$$"),
        ("-3", r"\boxed{-3.}"),
        ("0", r"\boxed{0}"),
        ("0", r"\boxed{0.0}"),
        (r"-\frac{1}{2}", r"\boxed{-\frac{1}{2}}"),
        ("x^2 - 2x + 1", r"\boxed{(x-1)^2}"),
        (r"16\pi", r"\boxed{16\pi \text{ cm}^2}"),
        (r"16\pi", r"\boxed{16 \pi}"),
        (r"\frac{3}{4}\pi", r"\boxed{\frac{3\pi}{4}}"),
        (r"120^\circ", r"\boxed{120}"),
        ("3:30", r"\boxed{3:30}"),
        ("1:4", r"\boxed{1:4}"),
        (r"0.\overline{3}", r"\boxed{\frac{1}{3}}"),
        (r"\frac{1}{3}", r"\boxed{0.\overline{3}}"),
        ("5,000,000", r"\boxed{5 \text{ million}}"),
        ("7", r"\boxed{x=7}"),
        ("7", "x = 7"),
        ("7", "So, n equals 7."),
        ("7", "Answer: n = 7"),
        ("12", "She has 12 left."),
        ("12", "12 left"),
        ("12.00", "$12"),
        ("1/6", "1/6"),
        ("1/6", "The probability is 1/6."),
        ("1/6", r"The probability is \frac{1}{6}."),
        ("1/6", r"The probability is $\frac{1}{6}$."),
        ("18", "The answer is **18**."),
        ("18", r"The answer is \$18."),
        ("18", "The answer is $18."),
        ("18", "The answer is $18 per day."),
        ("18", "The answer is: \n\n18"),
        ("18", "Answer: $18$ dollars"),
        ("A", "A"),
        ("A", "Answer: A"),
        ("A", "The correct answer is A) 5 apples"),
        ("2x", r"\boxed{x+x}"),
        ("(x+2)(x+3)", r"\boxed{(x+3)(x+2)}"),
        (r"\frac{x+2}{3}", r"\boxed{\frac{1}{3}x+\frac{2}{3}}"),
        ("|x|", r"\boxed{|x|}"),
        (r"\log_{10} 2", r"\boxed{\log 2}"),
        (r"\{x | x > 2\}", r"\boxed{x>2}"),
        (r"x \neq 2", r"\boxed{x \ne 2}"),
        ("25", "5^2"),
        ("25", r"\boxed{5^2}"),
        (r"7\text{ or }8", r"\boxed{7, 8}"),
        ("-x^2+2", r"\boxed{2-x^2}"),
        (r"\frac{1}{2}", r"\boxed{2^{-1}}"),
        ("1.5", r"\boxed{\frac{3}{2}}"),
        ("1", r"\boxed{1}"),
        ("(-1)^n", r"\boxed{(-1)^n}"),
        (r"\overline{AB}", r"\boxed{\overline{AB}}"),
        (r"\triangle ABC", r"\boxed{\triangle ABC}"),
        (r"\angle A", r"\boxed{\angle A}"),
        ("i", r"\boxed{i}"),
        ("-i", r"\boxed{-i}"),
        ("e", r"\boxed{e}"),
        (r"\text{Saturday}", r"\boxed{Saturday}"),
        (r"\text{no solution}", r"\boxed{\text{No solution}}"),
        (r"10 \text{ m/s}", r"\boxed{10 m/s}"),
        ("10 m/s", r"\boxed{36 \text{ km/h}}"),
        ("5 kg", r"\boxed{5000\text{ g}}"),
        (r"30\text{ mph}", r"\boxed{30}"),
        ("72", r"\boxed{7.2 \times 10}"),
    ],
}

WRONG: dict[str, list[tuple[str, str]]] = {
    "where the answer stands": [
        ("72", r"first 72, but then \boxed{71}"),
        ("72", "The answer is 71. 72 is too much."),
        ("72", "#### 71\n"),
        ("72", "72 at first, then 73"),
        ("72", r"\boxed{72} no wait, \boxed{73}"),
        ("72", r"\boxed{72 \text{ or } 73}"),
        ("72", r"\boxed{72, 73}"),
        ("72", r"\boxed{\{72, 73\}}"),
        ("x=5", r"\boxed{y=5}"),
    ],
    "numbers": [
        ("72", r"\boxed{-72}"),
        ("72", "172"),
        ("72", "7.2"),
        ("72", r"\boxed{73}"),
        ("72", r"\boxed{72.01}"),
        ("1000000", r"\boxed{1000001}"),
        ("1234", r"\boxed{1,235}"),
        ("0.0000001", r"\boxed{0}"),
        ("0", r"\boxed{10^{-9}}"),
        ("12345678901234567890123456789", r"\boxed{12345678901234567890123456788}"),
        ("3.14159", r"\boxed{3.14160}"),
        ("1500000", r"\boxed{1.5 \times 10^5}"),
    ],
    "fractions": [
        (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}"),
        (r"\frac{1}{2}", r"\boxed{\frac{2}{1}}"),
        ("1/3", r"\boxed{0.33}"),
        ("1/3", r"\boxed{0.3333}"),
        (r"1\frac{1}{2}", r"\boxed{\frac{1}{2}}"),
        (r"\frac{a}{b}", r"\boxed{\frac{b}{a}}"),
        ("1", r"\boxed{\frac{1}{0}}"),
    ],
    "percentages": [
        (r"50\%", r"\boxed{5\%}"),
        ("50%", r"\boxed{0.05}"),
        ("50", r"\boxed{0.5}"),
        ("0.5", r"\boxed{5\%}"),
    ],
    "units and money": [
        ("10 cm", r"\boxed{10\text{ m}}"),
        ("10 cm", r"\boxed{11\text{ cm}}"),
        ("1 hour", r"\boxed{1\text{ minute}}"),
        ("$42", r"\boxed{\$43}"),
        ("$42", r"\boxed{42 \text{ cents}}"),
        (r"45^\circ", r"\boxed{54^\circ}"),
    ],
    "surds and powers": [
        (r"2\sqrt{3}", r"\boxed{3\sqrt{2}}"),
        (r"2\sqrt{3}", r"\boxed{3.46}"),
        (r"2\sqrt{3}", r"\boxed{2}"),
        (r"2\sqrt{3}", r"\boxed{-2\sqrt{3}}"),
        (r"\sqrt[3]{2}", r"\boxed{\sqrt{2}}"),
        (r"2\sqrt{3}", r"\boxed{\infty^\pi \pi}"),
        ("2^{10}", r"\boxed{1023}"),
        ("2^{2024}-1", r"\boxed{2^{2024}}"),
        ("2^{2024}", r"\boxed{2^{2023}}"),
    ],
    "pi, e, logarithms, angles": [
        (r"\pi", r"\boxed{3.14}"),
        (r"\pi", r"\boxed{\frac{22}{7}}"),
        (r"\frac{\pi}{2}", r"\boxed{\frac{2}{\pi}}"),
        ("e^2", r"\boxed{2e}"),
        (r"\ln 8", r"\boxed{2\ln 3}"),
    ],
    "expressions": [
        ("x^2+1", r"\boxed{x^2-1}"),
        ("(x+1)^2", r"\boxed{x^2+1}"),
        ("2x+3", r"\boxed{2y+3}"),
        ("y=2x+3", r"\boxed{y=2x-3}"),
        ("3+4i", r"\boxed{3-4i}"),
        ("x^2+y^2=25", r"\boxed{x^2+y^2=5}"),
    ],
    "sets and lists": [
        (r"\{1,2,3\}", r"\boxed{\{1,2\}}"),
        (r"\{1,2\}", r"\boxed{\{1,2,3\}}"),
        (r"\{1,2\}", r"\boxed{\{1,3\}}"),
        ("1,2", r"\boxed{1}"),
        (r"\pm 3", r"\boxed{3}"),
        (r"\{1,1,2\}", r"\boxed{\{1,2,2\}}"),
    ],
    "points and intervals": [
        ("(1,2)", r"\boxed{(2,1)}"),
        ("(1,2)", r"\boxed{(1,2,3)}"),
        ("[0,1)", r"\boxed{[0,1]}"),
        ("[0,1)", r"\boxed{(0,1)}"),
        ("(0,1)", r"\boxed{[0,1]}"),
        ("[0,1]", r"\boxed{0 < x < 1}"),
        (r"(-\infty, 2)", r"\boxed{(-\infty, 2]}"),
        ("x>3", r"\boxed{x \ge 3}"),
        (r"(-\infty,1)\cup(2,\infty)", r"\boxed{(-\infty,1)}"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix}1&3\\2&4\end{pmatrix}}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2&3&4\end{pmatrix}}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\end{pmatrix}}"),
    ],
    "words": [
        (r"\text{even}", r"\boxed{odd}"),
        ("B", "The answer is (C)."),
        ("Tuesday", "The answer is Thursday."),
        ("yes", r"\boxed{\text{no}}"),
        ("1010_2", r"\boxed{1010_3}"),
    ],
    "as models write, and data sets do": [
        (r"\frac{14}{3}", r"\boxed{\frac{14}{5}}"),
        (r"\frac{14}{3}", r"\boxed{4.67}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi)}"),
        ("6-5i", r"\boxed{5-6i}"),
        (r"x \in [-2,7]", r"\boxed{(-2,7)}"),
        (r"\frac{3}{56}", r"\boxed{0.0536}"),
        (r"\text{Evelyn}", r"\boxed{\text{Briana}}"),
        ("2k", r"\boxed{k}"),
        (r"(5,\infty)", r"\boxed{x \ge 5}"),
        ("3,5,7", r"\boxed{3,5}"),
        ("3,5,7", r"\boxed{3,5,8}"),
        ("E", r"\boxed{\textbf{(D)}}"),
        (r"16\pi", r"\boxed{16}"),
        ("16", r"\boxed{16\pi}"),
        (r"16\pi", r"\boxed{8\pi}"),
        (r"0.\overline{3}", r"\boxed{0.3}"),
        ("1:4", r"\boxed{4:1}"),
        ("3:30", r"\boxed{3:40}"),
        ("x^2-2x+1", r"\boxed{(x+1)^2}"),
        (r"120^\circ", r"\boxed{60^\circ}"),
        ("12", "12 at first but 13 in the end"),
        ("5", "<answer>6</answer> or 5"),
        (r"\text{June 20}", "The answer is June 21."),
        (r"\text{June 20}", r"\boxed{20}"),
        ("1/6", "The probability is 1/16."),
        ("5", "5 or 6"),
        ("5", r"\boxed{5 or 6}"),
        ("5", r"\boxed{5\ or\ 6}"),
        ("A", "B"),
        ("A", "The answer is A or B"),
        ("-3", r"\boxed{3}"),
        (r"7\text{ or }8", r"\boxed{7}"),
        ("-x^2+2", r"\boxed{x^2-2}"),
        ("(-1)^n", r"\boxed{(-1)^{n+1}}"),
        ("i", r"\boxed{-i}"),
        ("e", r"\boxed{2.718}"),
        (r"\text{no solution}", r"\boxed{0}"),
        ("10 m/s", r"\boxed{10\text{ km/h}}"),
        (r"30\text{ mph}", r"\boxed{30\text{ km/h}}"),
        ("72", r"\boxed{72!}"),
        ("72", r"\boxed{72\%\text{ of }72}"),
        ("x>2", r"\boxed{x<2}"),
        (r"\sqrt{51}", r"\boxed{7.14}"),
        ("1000", r"\boxed{1.000}"),
        ("1.000", r"\boxed{1000}"),
        ("12", r"\boxed{1,2}"),
        ("72", r"\boxed{72 = 73}"),
        ("5", r"\boxed{5 = 4}"),
        ("25", r"\boxed{52}"),
        ("25", "The answer is not 25 but 26."),
        ("0", r"\boxed{\emptyset}"),
        ("72", r"\boxed{72 \pm 1}"),
        ("72", r"\boxed{[72,73]}"),
        ("72", r"\boxed{71 < x < 73}"),
        ("72", r"\boxed{\approx 73}"),
        ("x", r"\boxed{X}"),
        ("72", r"\boxed{x}"),
        ("72", r"\boxed{72x}"),
        ("72", r"\boxed{72 \text{ or so, maybe } 73}"),
        ("72", r"\boxed{\text{not } 72}"),
    ],
    "letters that are no units": [
        ("60t", r"\boxed{60}"),
        ("4s", r"\boxed{4}"),
        ("4s", r"\boxed{4t}"),
        ("3x+2t", r"\boxed{3x+2}"),
        ("f(t)=20t", r"\boxed{20}"),
        ("v_0 t", r"\boxed{v_0}"),
        ("2m", r"\boxed{2s}"),
        (r"2\pi h", r"\boxed{2\pi}"),
        ("7", r"\boxed{7 r}"),
        ("7 r", r"\boxed{7 s}"),
    ],
    "equations that are no values": [
        *(("5", rf"\boxed{{{left}=5}}") for left in ("2x", "x^2", "-x", r"\frac{1}{x}", "6", r"\frac{9}{3}")),
        ("3", r"\boxed{1+1=3}"),
        ("y=2x+3", r"\boxed{2y=2x+3}"),
        ("y=2x+3", r"\boxed{x=2x+3}"),
    ],
    "words that change a number": [
        *(
            ("5", rf"\boxed{{5 \text{{ {word}}}}}")
            for word in ("squared", "factorial", "times k", "minus four", "halves")
        ),
        ("2", r"\boxed{2 \text{ to the power of ten}}"),
        ("1", r"\boxed{1 \text{ half}}"),
    ],
    "behind the thinking": [
        ("5", r"<think>\boxed{5}</think> The answer is 6."),
        ("C", r"\boxed{\textbf{(D)}\ 12}"),
        ("A", r"\boxed{(A) and (B)}"),
        ("A", r"\boxed{A) B) C)}"),
        ("A", r"\boxed{(A) is wrong, (B)}"),
        (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } x>2}"),
        (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x\le -1 \text{ or } x>1}"),
    ],
}


WRONG_ONCE = [  # accepted before: operators were lost, an equation was its right side, words were units
    ("6 cm", "6 m"),
    ("1", "1 million"),
    *((reference, rf"\boxed{{{answer}}}") for reference, answer in [
        ("x^2+y^2=25", "25"), ("abc", "a+b+c"), ("ad-bc", "ad+bc"), ("mgh", "mg/h"), ("12 pm", "12 am"), ("12", "1 2"),
        ("0.5", r"0.5\%"), ("2", r"2 \text{ less than seven}"), ("a+3z=0", "0"), ("7=11a+c", "11a+c"),
    ]),
    ("4", r"The inverse is $\begin{pmatrix}1&2\\3&4\end{pmatrix}$."),
    ("5", "The answer is 5. Wait, I forgot one. The answer is 6."),
]  # fmt: skip
RIGHT_ONCE = [  # rejected before
    ("6 cm", "60 mm"),
    ("1000000", "1 million"),
    (r"\frac{\pi}{6}", r"\pi/6 radians"),
    *(
        (answer, f"Final Answer: The final answer is ${answer}$. I hope it is correct.")
        for answer in (
            r"2\sqrt{3}",
            r"\frac{1}{2}",
            "x^2-1",
            "(1,2)",
            r"[0,\infty)",
            "3+4i",
            "-7",
            r"\{1,2\}",
            "2^{10}",
        )
    ),
    ("6", "The answer is 5. Wait, I forgot one. The answer is 6."),
    ("x \\geq 5", r"\boxed{x >= 5}"),
    ("(3,2)", r"\boxed{(x,y)=(3,2)}"),
    ("(x,y)=(3,2)", r"\boxed{(3,2)}"),
    ("2^{10}", r"\boxed{1,024}"),
    ("11111111100", r"\boxed{11,\! 111,\! 111,\! 100}"),
    ("42", r"\boxed{42\textnormal{ miles}}"),
    ("abc", r"\boxed{cba}"),
    ("2.5", r"\boxed{2,5}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"The inverse is $\begin{pmatrix}1&2\\3&4\end{pmatrix}$."),
]


def judged(answer: str, text: str) -> Judged:
    return math(Task("t", "", [], answer), text)


def pairs(table: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [pair for rows in table.values() for pair in rows]


@pytest.mark.parametrize(("answer", "text"), pairs(RIGHT) + RIGHT_ONCE)
def test_right(answer: str, text: str) -> None:
    assert judged(answer, text) == Judged(1.0)


@pytest.mark.parametrize(("answer", "text"), pairs(WRONG) + WRONG_ONCE)
def test_wrong(answer: str, text: str) -> None:
    assert judged(answer, text).reward == 0


def test_the_suite_of_our_own() -> None:
    """Every one of its rows, as `freerun bench judge --suite` reads them; tests/bench has the comparison."""
    rows = [json.loads(line) for line in (Path(__file__).parent / "math_answers.jsonl").read_text().splitlines()]
    assert len(rows) > 1200
    assert [row for row in rows if judged(row["reference"], row["answer"]).reward != row["expected"]] == []


def test_what_was_read_is_told() -> None:
    assert judged("72", "The answer is 71.").detail == "the answer was read as '71', and is '72'"


@pytest.mark.parametrize(
    ("answer", "right"),
    [("2^{2024}", True), ("1000!", True), ("x^{100}", True), ("(x+y)^{20}", True), ("2^{2^{10}}", True)],
)
def test_what_answers_hold_is_not_refused(answer: str, right: bool) -> None:
    assert judged(answer, rf"\boxed{{{answer} + 1 - 1}}").reward == right


def test_long_texts_are_read_from_their_end() -> None:
    began = time.monotonic()
    for filler in ("a 1 ", "$1$ ", r"\boxed{", "answer is ", "#### ", "\\"):
        long = filler * (10_000_000 // len(filler))
        assert judged("72", long).reward == 0
        assert judged("72", long + r" so \boxed{72}").reward == 1
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "text", ["", "   ", "I do not know how to do this", r"\boxed{}", r"\boxed{\frac{}", r"\boxed{)(}", r"\boxed{+*/}"]
)
def test_nothing_to_read_is_said_to_be_so(text: str) -> None:
    found = judged("72", text)
    assert (found.reward, found.reason) == (0.0, JudgeReason.UNPARSEABLE)
    assert found.detail


BROKEN = {
    "half a character": "\ud800 {} \udfff",
    "null bytes": "\0{}\0",
    "every control character": "".join(map(chr, range(32))) + "{}",
    "10 MB before": "x " * 5_000_000 + "{}",
    "10 MB after": "{}" + "x " * 5_000_000,
    "boxes that never close": r"\boxed{{" * 50_000 + "{}",
    "fractions that never close": r"\frac{{" * 20_000 + "{}",
    "ends without beginnings": "}}" * 50_000 + r"\right) \end{{matrix}}" + "{}",
    "beginnings without ends": r"\begin{{matrix}}" * 5_000 + "{}",
    "dollars": "$" * 50_001 + "{}",
    "backslashes": "\\" * 100_001 + "{}",
    "right to left": "\u202e{}\u202c",
    "many accents": "a" + "\u0301" * 100_000 + "{}",
}


async def test_no_text_breaks_or_stalls_the_judge() -> None:
    """Through the service, two seconds for each: whatever is around an answer or in it, there is a verdict."""
    texts = [text.format(answer) for text in BROKEN.values() for answer in ("", r"\boxed{72}")]
    texts += [rf"\boxed{{{text.format(72)}}}" for text in BROKEN.values()]
    async with JudgeService(RewardConfig(judge="math", timeout_s=2.0), retries=0) as service:
        verdicts = [await service.judge(Task("\ud800", "", [], "72", {"\0": ["\udfff"]}), text) for text in texts]
    assert {verdict.reason for verdict in verdicts} <= {JudgeReason.OK, JudgeReason.UNPARSEABLE}
    assert all(verdict.reward in (0.0, 1.0) for verdict in verdicts)
    assert verdicts[1].reward == 1.0


def test_references() -> None:
    with pytest.raises(RewardError, match="has no reference answer"):
        math(Task("t", "", []), "5")
    with pytest.raises(RewardError, match="there is no answer in its reference ''"):
        judged("", "5")


def test_the_tables_are_large_enough() -> None:
    assert len(pairs(RIGHT)) + len(pairs(WRONG)) >= 150
