package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// ended matches the line that ginkgo prints when a spec has ended; the spec's name is the next line.
var ended = regexp.MustCompile(`^\S+ (?:\[([A-Z -]+)\] )?\[([0-9.]+) seconds\]$`)

// maxLine is longer than any line of ginkgo. A longer line ends the parsing of lines, but not the copying.
const maxLine = 16 << 20

// follow copies ginkgo's output to the log and prints one line with the outcome of each spec that has ended.
func follow(from io.Reader, log, progress io.Writer) error {
	var copyErr, sayErr error
	result, count := "", 0
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Text()
		if copyErr == nil {
			_, copyErr = fmt.Fprintln(log, line)
		}
		if result != "" && sayErr == nil && !strings.HasPrefix(line, "[SynchronizedBeforeSuite]") && !strings.HasPrefix(line, "[SynchronizedAfterSuite]") {
			count++
			_, sayErr = fmt.Fprintf(progress, "  %3d %s  %s\n", count, result, withoutLabels(strings.Replace(line, "[It] ", "", 1)))
		}
		result = ""
		if match := ended.FindStringSubmatch(line); match != nil {
			result = fmt.Sprintf("%-8s %6.6s s", readable(match[1]), match[2])
		}
	}
	_, err := io.Copy(log, from)
	return errors.Join(copyErr, sayErr, lines.Err(), err)
}

// readable returns the outcome for ginkgo's word. A spec without a word has passed, and a slow one, too.
func readable(word string) string {
	if word == "" || word == "SLOW TEST" {
		return "passed"
	}
	return strings.ToLower(word)
}
