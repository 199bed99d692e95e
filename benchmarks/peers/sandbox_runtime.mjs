// Runs each command from standard input in Anthropic's sandbox-runtime, used as a library: one line of JSON in, one
out. import { spawn } from 'node:child_process' import { createInterface } from 'node:readline' import { createRequire }
from 'node:module' import { pathToFileURL } from 'node:url'

const [modules, directory] = process.argv.slice(2)
const found = createRequire(`${modules}/`).resolve('@anthropic-ai/sandbox-runtime')
const { SandboxManager } = await import(pathToFileURL(found))

await SandboxManager.initialize({
  network: { allowedDomains: [], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: [directory], denyWrite: [] },
})
console.log(JSON.stringify({ ready: true }))

async function run({ id, command, cwd }) {
  const wrapped = await SandboxManager.wrapWithSandbox(command)
  const child = spawn(wrapped, { shell: true, cwd, stdio: ['ignore', 'pipe', 'pipe'] })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', piece => { stdout += piece })
  child.stderr.on('data', piece => { stderr += piece })
  child.on('close', code => {
    SandboxManager.cleanupAfterCommand?.()
    console.log(JSON.stringify({ id, code, stdout, stderr }))
  })
}

for await (const line of createInterface({ input: process.stdin })) run(JSON.parse(line))
await SandboxManager.reset()
process.exit(0)
