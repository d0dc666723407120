// Command quartet-supervisor keeps the services of a node running. "quartet node" becomes it. Package supervisor
// describes it.
package main

import "github.com/quartet-node/quartet/cmd/internal/supervisor"

func main() { supervisor.Main() }
