// Sets every formula of the page. An unreadable one is an error, which the tests of the site see.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".math.notranslate")) {
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: true,
    });
  }
});
