// Command nodestatus is the service nodestatus alone, for its image. Package services/nodestatus describes it.
package main

import "github.com/quartet-node/quartet/services/nodestatus"

func main() { nodestatus.Main() }
