// Command pleg is the service pleg alone, for its image. Package services/pleg describes it.
package main

import "github.com/quartet-node/quartet/services/pleg"

func main() { pleg.Main() }
