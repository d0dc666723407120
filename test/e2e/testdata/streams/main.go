// Command streams is what a container runs whose streams are tested: "streams lines" says back each line that it reads, until one says
// "end"; "streams stderr" writes to both outputs and ends with code 3.
package main

import (
	"bufio"
	"fmt"
	"os"
)

const stderrCode = 3

func main() { os.Exit(run(os.Args[len(os.Args)-1])) }

func run(mode string) int {
	if mode == "stderr" {
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		return stderrCode
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "end" {
			return 0
		}
		fmt.Println("read " + lines.Text())
	}
	return 0
}
